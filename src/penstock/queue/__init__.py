"""Event queues on this host: `EventQueue` in memory, `DurableEventQueue` on RocksDB.

What lives here: the edge of a pipeline, where an application hands an event over and can forget it.

May import: `storage`, `records`, `errors`, `metrics`.
"""

from penstock.queue.codecs import Codec, MsgspecCodec
from penstock.queue.durable import DurableEventQueue
from penstock.queue.event import DurableEvent
from penstock.queue.memory import EventQueue
from penstock.queue.places import is_queue, opening_of, queues_in

__all__ = [
    "Codec",
    "DurableEvent",
    "DurableEventQueue",
    "EventQueue",
    "MsgspecCodec",
    "is_queue",
    "opening_of",
    "queues_in",
]
