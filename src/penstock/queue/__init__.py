"""Event queues on this host: `EventQueue` in memory, `DurableEventQueue` on RocksDB.

What lives here: the edge of a pipeline, where an application hands an event over and can forget it.

May import: `storage`, `records`, `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.queue.codecs import Codec, MsgspecCodec
    from penstock.queue.durable import DurableEventQueue
    from penstock.queue.event import DurableEvent
    from penstock.queue.memory import EventQueue
    from penstock.queue.places import is_queue, opening_of, queues_in
    from penstock.queue.repair import repair_queue
    from penstock.queue.report import QueueRepair
    from penstock.queue.status import QueueStatus, queue_status
    from penstock.queue.workers import WorkerQueues
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "codecs": "Codec MsgspecCodec",
            "durable": "DurableEventQueue",
            "event": "DurableEvent",
            "memory": "EventQueue",
            "places": "is_queue opening_of queues_in",
            "repair": "repair_queue",
            "report": "QueueRepair",
            "status": "QueueStatus queue_status",
            "workers": "WorkerQueues",
        },
    )

__all__ = [
    "Codec",
    "DurableEvent",
    "DurableEventQueue",
    "EventQueue",
    "MsgspecCodec",
    "QueueRepair",
    "QueueStatus",
    "WorkerQueues",
    "is_queue",
    "opening_of",
    "queue_status",
    "queues_in",
    "repair_queue",
]
