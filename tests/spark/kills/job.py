"""The work that goes on whatever is killed: numbered events, a pipeline, and where each event must be at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from penstock import Consumer, Producer
from penstock.buffer import Manifest, ProducerConfig
from penstock.engine import ParseFormat
from penstock.spark import Pipeline
from penstock.spark.pipeline.plan import ParseStep, Plan, Target
from penstock.spark.source.options import OnError
from penstock.spark.tables.contract import Sink
from tests.spark.kills.kinds import (
    BUFFER,
    PARQUET,
    TABLES,
    count_blocks,
    letters_kind,
    read_column,
    read_table,
    to_letters,
    to_rows,
)
from tests.support.processes import Parent

Opens: TypeAlias = Callable[[Any], Sink]

PER_BATCH = 10  # events
PER_BLOCK = 2  # batches, where blocks are to be many
_BROKEN_EVERY = 7  # one event in so many is no JSON,
_UNWANTED_EVERY = 5  # and one in so many is JSON that the process function sets aside
_NUMBER = re.compile(rb'"n": ?(\d+)')


def is_broken(number: int) -> bool:
    return number % _BROKEN_EVERY == 0


def is_dead(number: int) -> bool:
    return is_broken(number) or number % _UNWANTED_EVERY == 0


def event(number: int) -> bytes:
    return b'{"n": %d, this is no JSON' % number if is_broken(number) else b'{"n": %d}' % number


def marking_unwanted() -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A process function that sets unwanted events aside. It is defined here so that it goes to workers by value."""

    def mark_unwanted(events: pa.RecordBatch) -> pa.RecordBatch:
        numbers: list[Any] = events.column("n").to_pylist()
        errors = [f"{n} is unwanted" if n % _UNWANTED_EVERY == 0 else None for n in numbers]
        return events.append_column("_error", pa.array(errors, pa.string()))

    return mark_unwanted


@dataclass(frozen=True)
class Job:
    """The places of a job. Its rows go into a table of some kind, or into another buffer."""

    root: Path
    kind: str = PARQUET
    checkpoint: str = "checkpoint"

    @property
    def buffer(self) -> Path:
        return self.root / "events"

    @property
    def rows(self) -> Path:
        return self.root / "rows"

    @property
    def letters(self) -> Path:
        return self.root / "letters"

    def pipeline(self, per_block: int | None = None) -> Pipeline:
        """The pipeline; with small blocks, or with blocks of whatever there is."""
        options = {"pollInterval": 0.1} | ({} if per_block is None else {"maxBatchesPerTrigger": per_block})
        pipeline = (
            Pipeline(self.buffer, self.root / self.checkpoint, options=options)
            .parse("json", schema="n bigint", on_error="dlq")
            .process(marking_unwanted())
        )
        return to_rows(self.kind, to_letters(self.kind, pipeline, self.letters), self.rows)

    def plan(self, open_rows: Opens, open_letters: Opens) -> Plan:
        """The same pipeline with small blocks, before it runs, and with other ways to open its two sinks."""
        return Plan(
            str(self.buffer),
            f"file://{self.root / self.checkpoint}",
            {"pollInterval": "0.1", "maxBatchesPerTrigger": str(PER_BLOCK)},
            parse=ParseStep(ParseFormat.JSON, "n bigint", OnError.DLQ),
            on_columns=((marking_unwanted(), None),),
            dead_letters=Target("dead_letters", open_letters, str(self.letters)),
            sink=Target("rows", open_rows, str(self.rows)),
        )

    def produce(self, numbers: Iterable[int]) -> None:
        """Put events into the buffer, in batches of their own."""
        every = list(numbers)
        with Producer(self.buffer, ProducerConfig(flush_interval=3600)) as producer:
            for first in range(0, len(every), PER_BATCH):
                producer.produce([event(number) for number in every[first : first + PER_BATCH]])
                producer.flush()

    def produce_blocks(self, count: int) -> range:
        """Produce so many small blocks, and return their numbers."""
        numbers = range(count * PER_BLOCK * PER_BATCH)
        self.produce(numbers)
        return numbers

    def blocks(self) -> int:
        """How many blocks of rows the table has."""
        return count_blocks(self.kind, self.rows)

    def row_count(self) -> int:
        """How many rows the table has, for a reader that is not ours."""
        return len(next(iter(read_column(self.kind, self.rows, "n").values())))

    def plans(self) -> list[Path]:
        """What is planned beside the checkpoint."""
        return list((self.root / self.checkpoint / "penstock").rglob("*.json"))

    def staged(self) -> list[Path]:
        """What is in the staging directories."""
        return [path for name in (".rows.staging", ".letters.staging") for path in (self.root / name).glob("*")]


@dataclass(frozen=True)
class Found:
    """How often each event is where it belongs, for one kind of reader."""

    rows: Counter[int]
    letters: Counter[int]

    def twice(self) -> dict[int, int]:
        """Events that are there more than once."""
        return {number: count for number, count in (self.rows + self.letters).items() if count > 1}

    def lost(self, numbers: Iterable[int]) -> list[int]:
        """Events that are nowhere, or where the others belong."""
        return [number for number in numbers if not (self.letters if is_dead(number) else self.rows)[number]]


def seen_by_others(job: Job, consumed: Iterable[int] = ()) -> dict[str, Found]:
    """What readers without Penstock find; in a buffer, what a consumer of ours finds and has consumed before."""
    letters = read_column(letters_kind(job.kind), job.letters, "payload")
    found = {}
    for reader, values in read_column(job.kind, job.rows, "n").items():
        rows = [*consumed, *map(_number_in, values)] if job.kind == BUFFER else values
        theirs = letters.get(reader) or next(iter(letters.values()))
        found[reader] = Found(Counter(rows), Counter(_number_in(bytes(payload)) for payload in theirs))
    return found


def seen_by_read_table(job: Job, spark: Any) -> Found:
    """What `Pipeline.read_table` finds."""

    def column(table: Path, name: str) -> list[Any]:
        return [row[0] for row in read_table(job.kind, spark, table).select(name).collect()]

    payloads = column(job.letters, "payload")
    return Found(Counter(column(job.rows, "n")), Counter(_number_in(bytes(payload)) for payload in payloads))


def keep_taking(parent: Parent, job: Job) -> list[int]:
    """Take everything out of the buffer that the rows go to, as it comes, until it is to stop; return the numbers."""
    consumed: list[int] = []
    with Consumer(job.rows) as consumer:
        parent.tell()
        while not parent.wants():
            for batch in consumer.follow(timeout=0.05):
                consumed += [_number_in(value) for value in batch.entries]
                batch.ack()
    return consumed


def assert_exactly_once(job: Job, spark: Any, numbers: Iterable[int], consumed: Iterable[int] = ()) -> Found:
    """Every event is where it belongs, once, for every kind of reader; and the buffer is empty."""
    wanted = set(numbers)
    readers = seen_by_others(job, consumed)
    if job.kind in TABLES:
        readers["read_table"] = seen_by_read_table(job, spark)
    for reader, found in readers.items():
        assert not found.lost(wanted), f"lost, for {reader}"
        assert not found.twice(), f"twice, for {reader}"
        assert found.rows.keys() | found.letters.keys() == wanted, f"never produced, for {reader}"
    assert Manifest.read(job.buffer).entries == ()
    return next(iter(readers.values()))


def _number_in(payload: bytes) -> int:
    found = _NUMBER.search(payload)
    assert found, payload
    return int(found[1])
