"""The contract of one block of work: receive, dead-letter, process, send, commit.

What lives here: `WorkBatch`, the block driver, dead letters, self-regulation, and the transports that stand on
the buffer and the queues.

May import: `buffer`, `queue`, `metalog`, and what lies below them.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.engine.batch_engine import BatchEngine, EngineConfig
    from penstock.engine.block_loop import CommitMode
    from penstock.engine.dead_letters import DeadLetter, DlqPolicy
    from penstock.engine.delivery import Delivery as Delivery
    from penstock.engine.delivery import wait_for_delivery as wait_for_delivery
    from penstock.engine.parsing.column_functions import (
        ERROR as ERROR,
    )
    from penstock.engine.parsing.column_functions import (
        ColumnFunction as ColumnFunction,
    )
    from penstock.engine.parsing.column_functions import (
        columns,
    )
    from penstock.engine.parsing.column_functions import (
        keeps_rows as keeps_rows,
    )
    from penstock.engine.parsing.column_functions import (
        set_apart as set_apart,
    )
    from penstock.engine.parsing.parsed_batch import ParsedBatch, ParseErrorAction
    from penstock.engine.parsing.parser import check_columns as check_columns
    from penstock.engine.parsing.parser import infer_schema as infer_schema
    from penstock.engine.parsing.parser import parse_as as parse_as
    from penstock.engine.parsing.payload_format import ParseFormat as ParseFormat
    from penstock.engine.regulation.budget import ByteBudget, ByteBudgetConfig
    from penstock.engine.regulation.gate import Admit, InboundGate
    from penstock.engine.regulation.guard import MemoryGuard
    from penstock.engine.regulation.inbound import Inbound as Inbound
    from penstock.engine.regulation.pressure import Hysteresis, Pressure, PressureSource, UnifiedPressure
    from penstock.engine.regulation.self_regulation import Governor as Governor
    from penstock.engine.regulation.self_regulation import SelfRegulation
    from penstock.engine.shipping import ship
    from penstock.engine.stats import EngineStats
    from penstock.engine.ticker import Ticker as Ticker
    from penstock.engine.ticker import Ticks as Ticks
    from penstock.engine.transports.buffer_receiver import BufferReceiver
    from penstock.engine.transports.buffer_sender import BufferSender
    from penstock.engine.transports.contract import Drop, Keep, Receiver, Sender
    from penstock.engine.transports.fetch_ahead import Fetch as Fetch
    from penstock.engine.transports.fetch_ahead import FetchAhead as FetchAhead
    from penstock.engine.transports.memory import MemoryTransport
    from penstock.engine.transports.queue import QueueReceiver
    from penstock.engine.work_batch import WorkBatch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.engine.batch_engine": ("BatchEngine", "EngineConfig"),
            "penstock.engine.block_loop": ("CommitMode",),
            "penstock.engine.dead_letters": ("DeadLetter", "DlqPolicy"),
            "penstock.engine.delivery": ("Delivery", "wait_for_delivery"),
            "penstock.engine.parsing.column_functions": (
                "ColumnFunction",
                "ERROR",
                "columns",
                "keeps_rows",
                "set_apart",
            ),
            "penstock.engine.parsing.parsed_batch": ("ParseErrorAction", "ParsedBatch"),
            "penstock.engine.parsing.parser": ("check_columns", "infer_schema", "parse_as"),
            "penstock.engine.parsing.payload_format": ("ParseFormat",),
            "penstock.engine.regulation.budget": ("ByteBudget", "ByteBudgetConfig"),
            "penstock.engine.regulation.gate": ("Admit", "InboundGate"),
            "penstock.engine.regulation.guard": ("MemoryGuard",),
            "penstock.engine.regulation.inbound": ("Inbound",),
            "penstock.engine.regulation.pressure": ("Hysteresis", "Pressure", "PressureSource", "UnifiedPressure"),
            "penstock.engine.regulation.self_regulation": ("Governor", "SelfRegulation"),
            "penstock.engine.shipping": ("ship",),
            "penstock.engine.stats": ("EngineStats",),
            "penstock.engine.ticker": ("Ticker", "Ticks"),
            "penstock.engine.transports.buffer_receiver": ("BufferReceiver",),
            "penstock.engine.transports.buffer_sender": ("BufferSender",),
            "penstock.engine.transports.contract": ("Drop", "Keep", "Receiver", "Sender"),
            "penstock.engine.transports.fetch_ahead": ("Fetch", "FetchAhead"),
            "penstock.engine.transports.memory": ("MemoryTransport",),
            "penstock.engine.transports.queue": ("QueueReceiver",),
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
