"""Looking at a backlog: the rows that a batch read gives, from disk and from S3, and how they are cut into tasks."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock import Producer, ProducerConfig, Record
from penstock.buffer.groups import Groups
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.spark.source.schemas import UNPARSED
from tests.support.backlogs import Backlog, backlog_rows, numbers
from tests.support.manifests import KINDS
from tests.support.processes import Parent, Start
from tests.support.waiting import NEVER

MANIFESTS = KINDS

AT = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC)
AT_MS = 1769860800123
FIRST = datetime(2026, 3, 1, 0, 0, 0, 1000, UTC)


def merge(backlog: Backlog, *calls: tuple[list[Record], bytes]) -> None:
    """Produce one batch of several calls, the first at `FIRST`, and each a second after the one before."""
    now = [FIRST.timestamp()]
    config = ProducerConfig(flush_interval=NEVER, format="arrow")
    with Producer(backlog.store, config, clock=lambda: now[0]) as producer:
        for records, metadata in calls:
            producer.produce(records, metadata)
            now[0] += 1


def seconds_later(seconds: int) -> datetime:
    return FIRST + timedelta(seconds=seconds)


# Unparsed.


def test_every_column_of_every_record_is_there(session: Any, anywhere: Backlog) -> None:
    merge(
        anywhere,
        ([Record(b"one", b"k", [("a", b"1"), ("a", b"2")], AT_MS), Record(b"")], b"first call"),
        ([Record(b"three", b"", [], -1)], b""),
    )
    anywhere.put([b"alone"])

    frame = anywhere.frame(session)

    assert frame.schema == UNPARSED
    rows = [row.asDict(recursive=True) for row in frame.where("sequence = 0").orderBy("index").collect()]
    local = AT.astimezone().replace(tzinfo=None)
    before_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC).astimezone().replace(tzinfo=None)
    ingested = [seconds_later(seconds).astimezone().replace(tzinfo=None) for seconds in (0, 1)]
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    assert rows == [
        {
            "key": b"k",
            "value": b"one",
            "headers": headers,
            "timestamp": local,
            "sequence": 0,
            "index": 0,
            "ingestion_time": ingested[0],
            "metadata": b"first call",
        },
        {
            "key": None,
            "value": b"",
            "headers": None,
            "timestamp": None,
            "sequence": 0,
            "index": 1,
            "ingestion_time": ingested[0],
            "metadata": b"first call",
        },
        {
            "key": b"",
            "value": b"three",
            "headers": [],
            "timestamp": before_1970,
            "sequence": 0,
            "index": 2,
            "ingestion_time": ingested[1],
            "metadata": b"",
        },
    ]
    (alone,) = (row.asDict() for row in frame.where("sequence = 1").collect())
    assert {**alone, "ingestion_time": None} == {
        **dict.fromkeys(UNPARSED.fieldNames()),
        "value": b"alone",
        "sequence": 1,
        "index": 0,
        "metadata": b"",
    }


def test_a_look_acks_nothing_and_fences_nobody(session: Any, backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)

    assert backlog.frame(session).count() == 5

    assert (backlog.epoch(), backlog.sequences()) == (0, [0, 1, 2, 3, 4])


def test_what_comes_after_a_look_was_planned_is_not_in_it(backlog: Backlog) -> None:
    backlog.put_numbers(0, 3)
    reader = backlog.reader()
    tasks = reader.partitions()
    backlog.put_numbers(3, 5)

    assert [row for task in tasks for batch in reader.read(task) for row in numbers(batch.to_pylist())] == [0, 1, 2]


def test_a_batch_that_is_cut_into_row_ranges_has_each_row_once_with_what_was_said_of_it(backlog: Backlog) -> None:
    merge(
        backlog,
        ([Record(b"a" * 100)] * 7, b"a"),
        ([Record(b"b" * 100)], b"b"),
        ([Record(b"c" * 100)] * 12, b"c"),
    )
    reader = backlog.reader(targetPartitionBytes=150)
    assert len(reader.partitions()) > 10

    rows = backlog_rows(reader)

    assert [row["index"] for row in rows] == list(range(20))
    assert [row["metadata"] for row in rows] == [b"a"] * 7 + [b"b"] + [b"c"] * 12
    assert [row["value"][:1] for row in rows] == [row["metadata"] for row in rows]
    assert [row["ingestion_time"] for row in rows] == [
        *[seconds_later(0)] * 7,
        seconds_later(1),
        *[seconds_later(2)] * 12,
    ]


def test_only_the_columns_that_a_schema_names_are_made_in_its_order(session: Any, backlog: Backlog) -> None:
    merge(backlog, ([Record(b"one", b"k")], b"metadata"))

    frame = backlog.frame(session, "metadata binary, sequence bigint, key binary")

    assert frame.columns == ["metadata", "sequence", "key"]
    assert [tuple(row) for row in frame.collect()] == [(b"metadata", 0, b"k")]


def test_a_schema_of_other_columns_is_refused_by_name(session: Any, backlog: Backlog) -> None:
    with pytest.raises(Exception, match=r"penstock\.errors\.InvalidInput: the column 'key' is binary, not string"):
        backlog.frame(session, "key string").collect()


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(Record(b"x", timestamp_ms=9_223_372_036_854_775), id="the last that Spark has"),
        pytest.param(
            Record(b"x", timestamp_ms=9_223_372_036_854_776),
            id="beyond",
        ),
        pytest.param(
            Record(b"x", timestamp_ms=-(1 << 63)),
            id="before",
        ),
    ],
)
def test_a_record_of_any_time_that_can_be_produced_can_be_read(backlog: Backlog, record: Record) -> None:
    backlog.put([record])
    reader = backlog.reader()

    assert [batch.num_rows for task in reader.partitions() for batch in reader.read(task)] == [1]


def test_a_buffer_that_is_not_there_has_no_rows(session: Any, tmp_path: Path) -> None:
    missing = Backlog(str(tmp_path / "missing"))
    assert missing.frame(session).count() == 0
    assert not Path(missing.url).exists()


@pytest.mark.parametrize(("given", "found"), [("earliest", [0, 1, 2]), ("2", [2]), ("3", []), ("latest", [])])
def test_a_look_may_start_at_a_sequence(backlog: Backlog, given: str, found: list[int]) -> None:
    backlog.put_numbers(0, 3)

    assert numbers(backlog_rows(backlog.reader(startingSequence=given))) == found


def test_a_look_by_a_group_shows_what_it_has_not_acked(backlog: Backlog, manifest: str) -> None:
    backlog.put_numbers(0, 3)
    if manifest == "opendata":
        with pytest.raises(InvalidInput, match="which is a manifest of version 1"):
            backlog_rows(backlog.reader(group="reports"))
        return
    with pytest.raises(InvalidInput, match="there is no group 'reports'"):
        backlog_rows(backlog.reader(group="reports"))
    Groups(backlog.store).create("reports", start=1)
    assert numbers(backlog_rows(backlog.reader(group="reports"))) == [1, 2]
    assert numbers(backlog_rows(backlog.reader())) == [0, 1, 2]


def test_a_look_goes_by_the_manifest_it_is_told(backlog: Backlog) -> None:
    config = ProducerConfig(manifest_path="queues/one", data_path_prefix="data/one")
    with Producer(backlog.store, config) as producer:
        producer.produce("there")

    rows = backlog_rows(backlog.reader(manifestPath="queues/one", dataPathPrefix="data/one"))

    assert [row["value"] for row in rows] == [b"there"]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("shape", ["arrow", "opendata"])
def test_batches_of_every_form_are_read(backlog: Backlog, compression: str, shape: str) -> None:
    with Producer(backlog.store, ProducerConfig(compression=compression, format=shape)) as producer:
        producer.produce([b"one", b"two"])

    assert [row["value"] for row in backlog_rows(backlog.reader())] == [b"one", b"two"]


def test_every_batch_has_exactly_the_columns_that_spark_expects(backlog: Backlog) -> None:
    from penstock.spark.versions import arrow_schema

    backlog.put([Record(b"a", b"k", [("h", b"v")], 1)], [b"no key"], [Record(b"t", timestamp_ms=5)])
    reader = backlog.reader()
    expected = arrow_schema(UNPARSED)
    assert expected.field("timestamp").type == pa.timestamp("us", tz="UTC")

    batches = [batch for task in reader.partitions() for batch in reader.read(task)]

    assert [batch.schema.equals(expected) for batch in batches] == [True] * 3


def test_what_spark_makes_of_no_partitions_reads_nothing(backlog: Backlog) -> None:
    from pyspark.sql.datasource import InputPartition

    reader = backlog.reader()
    assert list(reader.partitions()) == []

    assert list(reader.read(InputPartition(None))) == []


# Partitions.


def test_there_are_partitions_enough_for_all_cores(session: Any, backlog: Backlog) -> None:
    backlog.put([os.urandom(1 << 20)] * 3)

    assert backlog.frame(session).rdd.getNumPartitions() == 2


def test_partitions_are_about_as_large_as_they_are_told(session: Any, backlog: Backlog) -> None:
    backlog.put(*([os.urandom(1000)] * 10 for _ in range(10)))

    frame = backlog.frame(session, targetPartitionBytes="20k")

    assert frame.rdd.getNumPartitions() == 5
    assert frame.count() == 100


# Batches that cannot be read.


@pytest.mark.parametrize("kind", ["missing", "corrupt"])
def test_a_batch_that_cannot_be_read_fails_with_its_sequence_and_location(backlog: Backlog, kind: str) -> None:
    backlog.put_numbers(0, 3)
    location = backlog.entries()[1].location
    if kind == "missing":
        backlog.store.delete([location])
    else:
        backlog.store.put(location, b"nothing of ours")

    with pytest.raises((NotFound, CorruptData), match=rf"the data of sequence 1 \({location}\) in file://"):
        backlog_rows(backlog.reader())


def test_a_batch_that_is_set_aside_is_a_row_among_the_others(session: Any, backlog: Backlog) -> None:
    backlog.put([b'{"id": 1}'], [b'{"id": 2}'], [b'{"id": 3}'])
    backlog.store.put(backlog.entries()[1].location, b"nothing of ours")

    raw = backlog.frame(session, onCorruptBatch="dlq").select("sequence", "value", "_error", "_raw").collect()
    parsed = backlog.frame(session, format="json", columns="id bigint", onCorruptBatch="dlq").collect()

    assert [(row.sequence, row.value is None, row._raw) for row in raw] == [
        (0, False, None),
        (1, True, b"nothing of ours"),
        (2, False, None),
    ]
    assert "the data of sequence 1" in raw[1]._error
    assert [(row.id, row._raw) for row in parsed] == [(1, None), (None, b"nothing of ours"), (3, None)]


# Ctrl-C.


def read_slowly(parent: Parent, url: str) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the process that runs the tests may have it ignored
    reader = Backlog(url).reader(StructType([StructField("value", BinaryType())]))
    count = 0
    for task in reader.partitions():
        for batch in reader.read(task):
            if not count:
                parent.tell(os.getpid())
                parent.wait()
            count += batch.num_rows
    return count


def test_a_task_reads_on_when_the_terminal_interrupts_every_process(backlog: Backlog, start: Start) -> None:
    backlog.put_numbers(0, 5)
    child = start(read_slowly, backlog.url)

    os.kill(child.hear(), signal.SIGINT)
    child.tell("go on")

    assert child.answer() == 5
