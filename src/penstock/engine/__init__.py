"""The contract of one block of work: receive, dead-letter, process, send, commit.

What lives here: `WorkBatch`, the block driver, dead letters, self-regulation, and the transports that stand on
the buffer and the queues.

May import: `buffer`, `queue`, `metalog`, and what lies below them.
"""

from typing import TYPE_CHECKING

from penstock.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.engine.batch_engine import BatchEngine, EngineConfig
    from penstock.engine.block_loop import CommitMode
    from penstock.engine.buffer_receiver import BufferReceiver
    from penstock.engine.buffer_sender import BufferSender
    from penstock.engine.byte_budget import ByteBudget, ByteBudgetConfig
    from penstock.engine.column_functions import columns
    from penstock.engine.dead_letters import DeadLetter, DlqPolicy
    from penstock.engine.inbound_gate import Admit, InboundGate
    from penstock.engine.memory_guard import MemoryGuard
    from penstock.engine.memory_transport import MemoryTransport
    from penstock.engine.parsed_batch import ParsedBatch, ParseErrorAction
    from penstock.engine.pressure import Hysteresis, Pressure, PressureSource, UnifiedPressure
    from penstock.engine.queue_receiver import QueueReceiver
    from penstock.engine.receiving import Drop, Keep, Receiver, Sender
    from penstock.engine.self_regulation import SelfRegulation
    from penstock.engine.shipping import ship
    from penstock.engine.stats import EngineStats
    from penstock.engine.work_batch import WorkBatch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.engine.batch_engine": ("BatchEngine", "EngineConfig"),
            "penstock.engine.block_loop": ("CommitMode",),
            "penstock.engine.buffer_receiver": ("BufferReceiver",),
            "penstock.engine.buffer_sender": ("BufferSender",),
            "penstock.engine.byte_budget": ("ByteBudget", "ByteBudgetConfig"),
            "penstock.engine.column_functions": ("columns",),
            "penstock.engine.dead_letters": ("DeadLetter", "DlqPolicy"),
            "penstock.engine.inbound_gate": ("Admit", "InboundGate"),
            "penstock.engine.memory_guard": ("MemoryGuard",),
            "penstock.engine.memory_transport": ("MemoryTransport",),
            "penstock.engine.parsed_batch": ("ParsedBatch", "ParseErrorAction"),
            "penstock.engine.pressure": ("Hysteresis", "Pressure", "PressureSource", "UnifiedPressure"),
            "penstock.engine.queue_receiver": ("QueueReceiver",),
            "penstock.engine.receiving": ("Drop", "Keep", "Receiver", "Sender"),
            "penstock.engine.self_regulation": ("SelfRegulation",),
            "penstock.engine.shipping": ("ship",),
            "penstock.engine.stats": ("EngineStats",),
            "penstock.engine.work_batch": ("WorkBatch",),
        },
    )

__all__ = [
    "Admit",
    "BatchEngine",
    "BufferReceiver",
    "BufferSender",
    "ByteBudget",
    "ByteBudgetConfig",
    "CommitMode",
    "DeadLetter",
    "DlqPolicy",
    "Drop",
    "EngineConfig",
    "EngineStats",
    "Hysteresis",
    "InboundGate",
    "Keep",
    "MemoryGuard",
    "MemoryTransport",
    "ParseErrorAction",
    "ParsedBatch",
    "Pressure",
    "PressureSource",
    "QueueReceiver",
    "Receiver",
    "SelfRegulation",
    "Sender",
    "UnifiedPressure",
    "WorkBatch",
    "columns",
    "ship",
]
