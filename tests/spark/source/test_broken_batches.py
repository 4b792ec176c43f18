"""Batches that are missing or corrupt: a stream that meets one fails and acks nothing, or sets it aside."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.errors import CorruptData, NotFound
from penstock.spark.source.schemas import SET_ASIDE, UNPARSED
from tests.support.backlogs import Backlog, block_rows, numbers, parts, plan


@dataclass(frozen=True)
class Damage:
    """What was done to a batch, and how to undo it."""

    backlog: Backlog
    location: str
    data: bytes
    remains: bytes | None

    def repair(self) -> None:
        self.backlog.store.put(self.location, self.data)


@pytest.fixture(params=["missing", "corrupt"])
def damage(request: pytest.FixtureRequest, backlog: Backlog) -> Damage:
    """Five batches, of which the one with sequence 2 cannot be read."""
    backlog.put_numbers(0, 5)
    location = backlog.entries()[2].location
    data = backlog.store.get(location).data
    if request.param == "missing":
        backlog.store.delete([location])
        return Damage(backlog, location, data, None)
    backlog.store.put(location, data[: len(data) // 2])
    return Damage(backlog, location, data, data[: len(data) // 2])


def test_a_batch_that_cannot_be_read_fails_with_its_sequence_and_location(damage: Damage) -> None:
    reader = damage.backlog.stream_reader()

    with pytest.raises((NotFound, CorruptData), match=rf"the data of sequence 2 \({damage.location}\)"):
        block_rows(reader, 0, plan(reader, 0))

    assert damage.backlog.sequences() == [0, 1, 2, 3, 4]


def test_a_block_with_a_batch_that_was_repaired_is_read_by_the_next_run(damage: Damage) -> None:
    reader = damage.backlog.stream_reader()
    end = plan(reader, 0)
    with pytest.raises((NotFound, CorruptData)):
        block_rows(reader, 0, end)
    damage.repair()

    assert numbers(block_rows(damage.backlog.stream_reader(), 0, end)) == [0, 1, 2, 3, 4]


def test_a_raw_read_sets_a_batch_aside_as_one_row(damage: Damage) -> None:
    reader = damage.backlog.stream_reader(StructType([*UNPARSED, *SET_ASIDE]), onCorruptBatch="dlq")

    rows = block_rows(reader, 0, 5)

    assert [row["sequence"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["sequence"] for row in rows if row["_error"] is not None] == [2]
    assert f"the data of sequence 2 ({damage.location})" in rows[2]["_error"]
    assert rows[2]["_raw"] == damage.remains
    assert {name for name, value in rows[2].items() if value is not None} <= {"sequence", "_error", "_raw"}


def test_a_parsed_read_sets_a_batch_aside_as_one_row(damage: Damage) -> None:
    schema = StructType([StructField("id", LongType()), *SET_ASIDE])
    reader = damage.backlog.stream_reader(schema, format="json", onCorruptBatch="dlq", onError="skip")

    (row,) = block_rows(reader, 2, 3)

    assert row["id"] is None
    assert f"the data of sequence 2 ({damage.location})" in row["_error"]


def test_a_batch_that_is_set_aside_may_leave_its_bytes_out(damage: Damage) -> None:
    schema = StructType([StructField("_error", StringType()), StructField("value", BinaryType())])

    (row,) = block_rows(damage.backlog.stream_reader(schema, onCorruptBatch="dlq"), 2, 3)

    assert "sequence 2" in row["_error"]


def test_a_batch_that_may_be_set_aside_is_not_cut_into_row_ranges_and_is_set_aside_once(backlog: Backlog) -> None:
    backlog.put([b"x" * 1000] * 10)
    (entry,) = backlog.entries()
    data = backlog.store.get(entry.location).data
    backlog.store.put(entry.location, data[:-200] + bytes(200))
    schema = StructType([*UNPARSED, *SET_ASIDE])
    reader = backlog.stream_reader(schema, onCorruptBatch="dlq", targetPartitionBytes=1000)
    assert len(parts(reader, 0, 1)) == 1

    assert len(block_rows(reader, 0, 1)) == 1
