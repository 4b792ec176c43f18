"""The contract of one block of work: receive, dead-letter, process, send, commit.

What lives here: `WorkBatch`, the block driver, dead letters with their routes and their replay, self-regulation, and
the transports that stand on the buffer and the queues.

May import: `buffer`, `queue`, `metalog`, and what lies below them.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.engine.batch_engine import BatchEngine, EngineConfig
    from penstock.engine.block_loop import CommitMode
    from penstock.engine.dead_letters import DeadLetter, DlqPolicy, LetterId
    from penstock.engine.delivery import Delivery, wait_for_delivery
    from penstock.engine.kafka_import import ImportedPartition, KafkaImport, KafkaPlace
    from penstock.engine.letters.kinds import LETTER_KINDS
    from penstock.engine.letters.ledger import Ledger
    from penstock.engine.letters.letter import Filter, StoredLetter, letters_in
    from penstock.engine.letters.opening import open_letters
    from penstock.engine.letters.places import LetterPlace, is_local, notes_beside
    from penstock.engine.letters.replay import Replay, Replayed, Target
    from penstock.engine.letters.to_buffer import to_buffer
    from penstock.engine.letters.to_files import to_files
    from penstock.engine.letters.to_queue import to_queue
    from penstock.engine.parsing.block_reader import ParsedColumns
    from penstock.engine.parsing.one_payload import field, parse_one
    from penstock.engine.parsing.parse_options import ParseMode, ParseOptions, TimestampUnit
    from penstock.engine.parsing.parsed_batch import (
        ERROR,
        ColumnFunction,
        ParsedBatch,
        ParseErrorAction,
        columns,
        keeps_rows,
        set_apart,
    )
    from penstock.engine.parsing.parser import check_columns, infer_schema, parse_as
    from penstock.engine.parsing.payload_format import ParseFormat
    from penstock.engine.parsing.payload_schemas import CsvColumns, PayloadSchemas, ProtobufMessage, check_schemas
    from penstock.engine.parsing.schema_sample import SampledColumn, SampledSchema, sample_schema
    from penstock.engine.regulation.budget import ByteBudget, ByteBudgetConfig, Governor, SelfRegulation
    from penstock.engine.regulation.guard import MemoryGuard
    from penstock.engine.regulation.inbound import Admit, Inbound, InboundGate
    from penstock.engine.regulation.pressure import (
        Hysteresis,
        Pressure,
        PressurePart,
        PressureSource,
        UnifiedPressure,
    )
    from penstock.engine.regulation.snapshot import Regulation, RegulationSnapshot
    from penstock.engine.runs import Health
    from penstock.engine.shipper import Shipper
    from penstock.engine.shipping import ship
    from penstock.engine.sinks.routed import RoutedSink
    from penstock.engine.sinks.tiered import TieredSink
    from penstock.engine.stats import EngineStats
    from penstock.engine.ticker import Ticker, Ticks
    from penstock.engine.transports.buffer_receiver import BufferReceiver
    from penstock.engine.transports.buffer_sender import BufferSender
    from penstock.engine.transports.contract import Drop, Keep, Receiver, Sender
    from penstock.engine.transports.fetch_ahead import Fetch, FetchAhead
    from penstock.engine.transports.file_receiver import FileReceiver, FileToken
    from penstock.engine.transports.kafka_receiver import KafkaReceiver, KafkaToken
    from penstock.engine.transports.kafka_sender import KafkaSender
    from penstock.engine.transports.memory import MemoryTransport
    from penstock.engine.transports.queue import QueueReceiver
    from penstock.engine.transports.stdin_receiver import StdinReceiver
    from penstock.engine.work_batch import WorkBatch
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "batch_engine": "BatchEngine EngineConfig",
            "block_loop": "CommitMode",
            "dead_letters": "DeadLetter DlqPolicy LetterId",
            "delivery": "Delivery wait_for_delivery",
            "letters.kinds": "LETTER_KINDS",
            "letters.ledger": "Ledger",
            "letters.letter": "Filter StoredLetter letters_in",
            "letters.opening": "open_letters",
            "letters.places": "LetterPlace is_local notes_beside",
            "letters.replay": "Replay Replayed Target",
            "letters.to_buffer": "to_buffer",
            "letters.to_files": "to_files",
            "letters.to_queue": "to_queue",
            "parsing.block_reader": "ParsedColumns",
            "parsing.one_payload": "field parse_one",
            "kafka_import": "ImportedPartition KafkaImport KafkaPlace",
            "parsing.parse_options": "ParseMode ParseOptions TimestampUnit",
            "parsing.parsed_batch": "ColumnFunction ERROR ParseErrorAction ParsedBatch columns keeps_rows set_apart",
            "parsing.parser": "check_columns infer_schema parse_as",
            "parsing.payload_format": "ParseFormat",
            "parsing.payload_schemas": "CsvColumns PayloadSchemas ProtobufMessage check_schemas",
            "parsing.schema_sample": "SampledColumn SampledSchema sample_schema",
            "regulation.budget": "ByteBudget ByteBudgetConfig Governor SelfRegulation",
            "regulation.guard": "MemoryGuard",
            "regulation.inbound": "Admit Inbound InboundGate",
            "regulation.pressure": "Hysteresis Pressure PressurePart PressureSource UnifiedPressure",
            "regulation.snapshot": "Regulation RegulationSnapshot",
            "runs": "Health",
            "shipper": "Shipper",
            "shipping": "ship",
            "sinks.routed": "RoutedSink",
            "sinks.tiered": "TieredSink",
            "stats": "EngineStats",
            "ticker": "Ticker Ticks",
            "transports.buffer_receiver": "BufferReceiver",
            "transports.buffer_sender": "BufferSender",
            "transports.contract": "Drop Keep Receiver Sender",
            "transports.fetch_ahead": "Fetch FetchAhead",
            "transports.file_receiver": "FileReceiver FileToken",
            "transports.kafka_receiver": "KafkaReceiver KafkaToken",
            "transports.kafka_sender": "KafkaSender",
            "transports.memory": "MemoryTransport",
            "transports.queue": "QueueReceiver",
            "transports.stdin_receiver": "StdinReceiver",
            "work_batch": "WorkBatch",
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
    "CsvColumns",
    "DeadLetter",
    "DlqPolicy",
    "Drop",
    "EngineConfig",
    "EngineStats",
    "FileReceiver",
    "FileToken",
    "Health",
    "Hysteresis",
    "InboundGate",
    "KafkaReceiver",
    "KafkaSender",
    "KafkaToken",
    "Keep",
    "LetterId",
    "MemoryGuard",
    "MemoryTransport",
    "ParseErrorAction",
    "ParseOptions",
    "ParsedBatch",
    "ParsedColumns",
    "PayloadSchemas",
    "Pressure",
    "PressurePart",
    "PressureSource",
    "ProtobufMessage",
    "QueueReceiver",
    "Receiver",
    "Regulation",
    "RegulationSnapshot",
    "RoutedSink",
    "SampledColumn",
    "SampledSchema",
    "SelfRegulation",
    "Sender",
    "Shipper",
    "StdinReceiver",
    "TieredSink",
    "UnifiedPressure",
    "WorkBatch",
    "columns",
    "field",
    "parse_as",
    "parse_one",
    "sample_schema",
    "ship",
    "to_buffer",
    "to_files",
    "to_queue",
]
