"""Checkpoints that an earlier Penstock left, which ran on Structured Streaming: each is honoured, once.

Their files are written here as Spark wrote them, and the blocks of their tables as that Penstock did.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Consumer
from penstock.buffer import Manifest
from penstock.errors import CorruptData, InvalidInput
from penstock.spark.pipeline.block_plans import open_files
from penstock.spark.pipeline.dead_letters import TABLE
from penstock.spark.pipeline.spark_checkpoint import SparkCheckpoint, mark_as_read, read_spark_checkpoint
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.table import open_table
from tests.spark.pipeline.in_process import COLUMNS, Driver, Setting, Step, error_of, event, killed_at
from tests.support.pipeline_places import Places

OLD_FIELDS = ("version", "block", "end", "nonce", "at", "schema", "partition_by", "rows", "files")
MARK = "penstock/spark-checkpoint-is-read"


@dataclass
class Earlier:
    """What an earlier Penstock left: a checkpoint of Spark's, and blocks in tables."""

    setting: Setting
    query: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def checkpoint(self) -> Path:
        return self.setting.root / "checkpoint"

    def planned(self, *ends: int, committed: int) -> None:
        """Write a checkpoint: where each batch ends, and how many batches are in the commit log."""
        buffer_id = str(Manifest.read(self.setting.backlog.store).id)
        write_checkpoint(self.checkpoint, self.query, ends, committed, buffer_id)

    def wrote_rows(self, batch: int, end: int, numbers: Sequence[int]) -> None:
        rows = pa.RecordBatch.from_pydict({"n": numbers})
        write_block(self.setting.rows, BlockId(self.query, 0, end, number=batch), COLUMNS, rows)

    def wrote_letters(self, batch: int, end: int, numbers: Sequence[int]) -> None:
        nothing = dict.fromkeys(TABLE.names)
        letters: list[dict[str, Any]] = [nothing | {"payload": event(number)} for number in numbers]
        block = BlockId(self.query, 0, end, number=batch)
        write_block(self.setting.letters, block, TABLE, letters)

    def acked(self, through: int) -> None:
        with Consumer(self.setting.backlog.store) as consumer:
            consumer.next_descriptors(100)
            consumer.ack_through(through)

    def run(self, per_block: int = 9, **watched: Any) -> Driver:
        driver = self.setting.driver(per_block, checkpoint=str(self.checkpoint), **watched)
        driver.run()
        return driver

    def blocks(self, table: Path) -> list[str]:
        """The blocks of a table: old ones, of the checkpoint's query, and new ones, of the group's."""
        names = [path.name.removeprefix("block=") for path in table.glob("block=*")]
        return sorted(f"old {name[-1]}" if name.startswith(self.query) else f"new {name[-1]}" for name in names)


def write_checkpoint(folder: Path, query: str, ends: Sequence[int], committed: int, buffer_id: str | None) -> None:
    """The files of a checkpoint, exactly as Spark writes them."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    about = {"batchWatermarkMs": 0, "batchTimestampMs": 1765000000000, "conf": {"spark.sql.shuffle.partitions": "2"}}
    for batch, end in enumerate(ends):
        offset = json.dumps(({"buffer": buffer_id} if buffer_id else {}) | {"sequence": end})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{json.dumps(about)}\n{offset}")
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc\x00")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def write_block(table: Path, block: BlockId, columns: Any, rows: Any) -> None:
    """A committed block, with the fields that its commit had then."""
    nothing: Any = None  # a table on a disk needs no session
    opened = open_table(nothing, str(table))
    writer = opened.writer(columns, block)
    assert writer is not None
    files = writer.open(0)
    files.add(rows.cast(writer.schema) if isinstance(rows, pa.RecordBatch) else _batch(rows, writer.schema))
    assert opened.staged(block, files.close()).commit()
    at = table / f"block={block.name}" / "_commit.json"
    commit = json.loads(at.read_text())
    assert commit["end"] == json.dumps({"sequence": block.end})
    at.write_text(json.dumps({name: commit[name] for name in OLD_FIELDS}, indent=1))


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


pytestmark = pytest.mark.usefixtures("nothing_is_synced")


@pytest.fixture
def earlier(tmp_path: Path) -> Earlier:
    return Earlier(Setting(tmp_path))


@pytest.mark.parametrize("is_acked", [False, True], ids=["not acked", "acked"])
def test_what_is_committed_is_acked_and_not_read_again(earlier: Earlier, is_acked: bool) -> None:
    numbers = earlier.setting.put([1], [2], [3])
    earlier.planned(2, committed=1)
    earlier.wrote_rows(0, 2, [1, 2])
    if is_acked:
        earlier.acked(1)
    driver = earlier.run()
    assert [(block.first, block.end) for block in driver.blocks] == [(2, 3)]
    assert earlier.blocks(earlier.setting.rows) == ["new 0", "old 0"]
    earlier.setting.assert_each_once(numbers)


@pytest.mark.parametrize("batch", [0, 1], ids=["the first block", "a later block"])
def test_a_block_that_was_planned_and_is_not_in_the_table_is_done_first_under_its_own_name(
    earlier: Earlier, batch: int
) -> None:
    numbers = earlier.setting.put([1], [2], [3, -4], [5], [6])
    if batch:
        earlier.planned(2, 4, committed=1)
        earlier.wrote_rows(0, 2, [1, 2])
    else:
        earlier.planned(4, committed=0)
    driver = earlier.run(per_block=3)
    assert [(block.first, block.end) for block in driver.blocks] == [(2 * batch, 4), (4, 5)]
    assert driver.blocks[0].name == f"{earlier.query}-{batch:012d}"
    assert earlier.blocks(earlier.setting.rows) == ["new 0", "old 0", "old 1"][: 2 + batch]
    assert earlier.blocks(earlier.setting.letters) == [f"old {batch}"]
    earlier.setting.assert_each_once(numbers)


def test_a_block_that_was_planned_and_is_in_the_table_is_acked(earlier: Earlier) -> None:
    numbers = earlier.setting.put([1], [2], [3], [4], [5])
    earlier.planned(2, 4, committed=1)
    earlier.wrote_rows(0, 2, [1, 2])
    earlier.wrote_rows(1, 4, [3, 4])
    earlier.acked(1)
    driver = earlier.run()
    assert [(block.first, block.end) for block in driver.blocks] == [(4, 5)]
    earlier.setting.assert_each_once(numbers)


def test_letters_that_are_there_stay_and_the_rows_that_are_missing_are_written(earlier: Earlier) -> None:
    numbers = earlier.setting.put([1, -2], [3, -4], [5])
    earlier.planned(2, committed=0)
    earlier.wrote_letters(0, 2, [-2, -4])
    driver = earlier.run()
    assert [(block.rows, block.dead_letters) for block in driver.blocks] == [(2, 2), (1, 0)]
    assert earlier.blocks(earlier.setting.letters) == ["old 0"]
    earlier.setting.assert_each_once(numbers)


@pytest.mark.parametrize("step", [Step.PLANNED, Step.WRITTEN, Step.LETTERS_COMMITTED, Step.ROWS_COMMITTED])
def test_a_driver_that_is_killed_while_it_takes_over_is_followed_by_one_that_does(earlier: Earlier, step: Step) -> None:
    numbers = earlier.setting.put([1, -2], [3, -4], [5])
    earlier.planned(2, committed=0)
    error_of(lambda: earlier.run(reach=killed_at(step, 0)))
    assert not (earlier.checkpoint / MARK).exists()
    earlier.run(per_block=1)
    assert (earlier.checkpoint / MARK).exists()
    earlier.setting.assert_each_once(numbers)


def test_it_is_read_once_and_the_table_counts_from_then_on(earlier: Earlier) -> None:
    numbers = earlier.setting.put([1], [2])
    earlier.planned(1, committed=1)
    earlier.wrote_rows(0, 1, [1])
    earlier.run()
    numbers += earlier.setting.put([3])
    earlier.run()  # the checkpoint is older than the acks now
    earlier.setting.assert_each_once(numbers)


def test_one_that_was_made_where_nothing_was_queued_says_nothing(earlier: Earlier) -> None:
    earlier.setting.put([1])
    earlier.setting.driver().run()
    earlier.planned(1, 1, committed=2)
    numbers = [1, *earlier.setting.put([2])]
    earlier.run()
    earlier.setting.assert_each_once(numbers)


def test_one_that_is_older_than_the_acks_is_refused_and_nothing_is_acked(earlier: Earlier) -> None:
    earlier.setting.put([1], [2], [3], [4])
    earlier.planned(1, 2, committed=2)
    earlier.acked(2)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"goes on at sequence 2, .* is acked up to 2: .* older than the acks"):
            earlier.run()
    assert earlier.setting.backlog.sequences() == [3]
    assert earlier.setting.found().total() == 0


@pytest.mark.parametrize(
    ("buffer_id", "which"),
    [("4be1e5d8-0", "the buffer 4be1e5d8-0"), (None, "no buffer, as an earlier Penstock wrote it")],
)
def test_one_of_another_buffer_is_refused_and_nothing_is_read_or_acked(
    earlier: Earlier, buffer_id: str | None, which: str
) -> None:
    earlier.setting.put([1], [2])
    write_checkpoint(earlier.checkpoint, earlier.query, [1, 2], 1, buffer_id)
    with pytest.raises(InvalidInput, match=rf"is of {which}.*Nothing is read or acked; use a new checkpoint"):
        earlier.run()
    assert earlier.setting.backlog.sequences() == [0, 1]
    assert not (earlier.checkpoint / MARK).exists()


def test_one_that_reaches_past_the_end_of_the_buffer_is_refused(earlier: Earlier) -> None:
    earlier.setting.put([1], [2])
    earlier.planned(9, committed=1)
    with pytest.raises(InvalidInput, match="knows of sequence 8"):
        earlier.run()
    assert earlier.setting.backlog.sequences() == [0, 1]


def test_a_block_of_that_name_that_ends_elsewhere_is_an_error(earlier: Earlier) -> None:
    earlier.setting.put([1], [2], [3])
    earlier.planned(3, committed=0)
    earlier.wrote_rows(0, 2, [1, 2])
    with pytest.raises(CorruptData, match="the checkpoint has lost what it had planned"):
        earlier.run()
    assert earlier.setting.backlog.sequences() == [0, 1, 2]


@pytest.mark.parametrize("broken", ["metadata", "offsets/0"])
def test_one_that_cannot_be_read_is_named(earlier: Earlier, broken: str) -> None:
    earlier.setting.put([1])
    earlier.planned(1, committed=0)
    (earlier.checkpoint / broken).write_text("v1\nthis is no JSON")
    with pytest.raises(CorruptData, match=f"{earlier.checkpoint} cannot be read"):
        earlier.run()
    assert earlier.setting.backlog.sequences() == [0]


@pytest.mark.slow
def test_what_spark_itself_writes_is_read(session: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put([b"1"], [b"2"], [b"3"])
    rows = places.backlog.stream(session, maxBatchesPerTrigger=1).writeStream.format("noop")
    query = rows.option("checkpointLocation", places.checkpoint.as_uri()).trigger(availableNow=True).start()
    query.awaitTermination(120)
    files, buffer_id = open_files(session, str(places.checkpoint)), str(Manifest.read(places.backlog.store).id)

    assert read_spark_checkpoint(files, buffer_id, "here") == SparkCheckpoint(3, None)
    last = max(int(path.name) for path in (places.checkpoint / "commits").iterdir() if path.name.isdecimal())
    (places.checkpoint / "commits" / str(last)).unlink()
    planned = BlockId(query.id, 2, 3, number=last)
    assert read_spark_checkpoint(files, buffer_id, "here") == SparkCheckpoint(2, planned)
    mark_as_read(files)
    assert read_spark_checkpoint(files, buffer_id, "here") is None


def test_a_function_gets_the_block_that_was_planned_under_the_name_it_had(spark: Any, tmp_path: Path) -> None:
    places, query = Places(tmp_path), str(uuid.uuid4())
    places.put([b"1"], [b"2"], [b"3"])
    write_checkpoint(places.checkpoint, query, [1, 2], 1, str(Manifest.read(places.backlog.store).id))
    got: list[tuple[str, list[bytes]]] = []

    def keep(rows: Any, block: str) -> None:
        got.append((block, sorted(bytes(row["value"]) for row in rows.collect())))

    places.pipeline().to(keep).run(spark, "available_now")
    assert got[0] == (f"{query}-000000000001", [b"2"])
    assert [values for _, values in got[1:]] == [[b"3"]]
    assert places.queued() == []
