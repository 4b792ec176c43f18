"""Looking at a backlog: the rows that a batch read gives, unparsed and parsed, from disk and from S3."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock import Producer, ProducerConfig, Record
from penstock.errors import CorruptData, InvalidInput, NotFound, ParseFailed
from penstock.spark.data_source import register
from penstock.spark.schemas import SET_ASIDE, UNPARSED
from tests.processes import Parent, Start
from tests.servers import BUCKET, S3Server
from tests.spark.backlogs import Backlog, backlog_rows, numbers
from tests.waiting import NEVER

AT = datetime(2026, 1, 31, 12, 0, 0, 123_000, UTC)
AT_MS = 1769860800123
FIRST = datetime(2026, 3, 1, 0, 0, 0, 1000, UTC)
ID = StructField("id", LongType())
BAD = [b'{"id": 1}', b"no JSON", b'{"id": "x"}', b'{"id": 4}']


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """A task ignores Ctrl-C, and some run in the tests' own process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def backlog(tmp_path: Path) -> Backlog:
    return Backlog(str(tmp_path / "buffer"))


@pytest.fixture
def on_s3(s3_server: S3Server, fresh_name: str) -> Backlog:
    options = {name: str(value).lower() for name, value in s3_server.options.items()}
    return Backlog(f"s3://{BUCKET}/{fresh_name}", options)


@pytest.fixture(params=["disk", "s3"])
def anywhere(request: pytest.FixtureRequest) -> Backlog:
    found: Backlog = request.getfixturevalue("backlog" if request.param == "disk" else "on_s3")
    return found


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


def merge(backlog: Backlog, *calls: tuple[list[Record], bytes]) -> None:
    """Produce one batch of several calls, the first at `FIRST`, and each a second after the one before."""
    now = [FIRST.timestamp()]
    with Producer(backlog.store, ProducerConfig(flush_interval=NEVER), clock=lambda: now[0]) as producer:
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
    alone = frame.where("sequence = 1").collect()
    assert [(row.value, row.index, row.key, row.headers, row.timestamp) for row in alone] == [
        (b"alone", 0, None, None, None)
    ]


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
    merge(backlog, ([Record(b"one", b"k")], b"said"))

    frame = backlog.frame(session, "metadata binary, sequence bigint, key binary")

    assert frame.columns == ["metadata", "sequence", "key"]
    assert [tuple(row) for row in frame.collect()] == [(b"said", 0, b"k")]


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
            marks=pytest.mark.xfail(reason="ArrowInvalid, without a sequence, for good: nothing gets past this record"),
        ),
        pytest.param(
            Record(b"x", timestamp_ms=-(1 << 63)),
            id="before",
            marks=pytest.mark.xfail(reason="ArrowInvalid, without a sequence, for good: nothing gets past this record"),
        ),
    ],
)
def test_a_record_of_any_time_that_can_be_produced_can_be_read(backlog: Backlog, record: Record) -> None:
    backlog.put([record])
    reader = backlog.reader()

    assert [batch.num_rows for task in reader.partitions() for batch in reader.read(task)] == [1]


def test_a_buffer_that_is_not_there_has_no_rows(session: Any, backlog: Backlog) -> None:
    assert backlog.frame(session).count() == 0
    assert not Path(backlog.url).exists()


@pytest.mark.parametrize(("given", "found"), [("earliest", [0, 1, 2]), ("2", [2]), ("3", []), ("latest", [])])
def test_a_look_may_start_at_a_sequence(backlog: Backlog, given: str, found: list[int]) -> None:
    backlog.put_numbers(0, 3)

    assert numbers(backlog_rows(backlog.reader(startingSequence=given))) == found


@pytest.mark.xfail(reason="a batch read does not look at the group")
def test_a_look_by_a_group_needs_the_native_manifest(backlog: Backlog) -> None:
    with pytest.raises(InvalidInput, match="group must be 'default' on a manifest of version 1, not 'reports'"):
        backlog_rows(backlog.reader(group="reports"))


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
    from pyspark.sql.pandas.types import to_arrow_schema

    backlog.put([Record(b"a", b"k", [("h", b"v")], 1)], [b"no key"], [Record(b"t", timestamp_ms=5)])
    reader = backlog.reader()
    expected = to_arrow_schema(UNPARSED, timezone="UTC")
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


# Parsed.


def test_json_is_parsed_into_the_columns(session: Any, anywhere: Backlog) -> None:
    anywhere.put([b'{"id": 1, "event": "a", "more": 1}', b'{"event": "b"}', b"no JSON"], [b'{"id": "x"}'])

    frame = anywhere.frame(session, format="json", columns="id bigint, event string")

    assert frame.dtypes == [("id", "bigint"), ("event", "string"), ("_error", "string"), ("_raw", "binary")]
    rows = frame.collect()
    assert [(row.id, row.event) for row in rows if row._error is None] == [(1, "a"), (None, "b")]
    assert [(row.id, row.event, row._raw) for row in rows if row._error is not None] == [
        (None, None, b"no JSON"),
        (None, None, b'{"id": "x"}'),
    ]
    assert rows[-1]._error.startswith("parse error: the field 'id' is a string here")


def test_msgpack_is_parsed_into_the_columns(session: Any, backlog: Backlog) -> None:
    backlog.put([msgspec.msgpack.encode({"id": 1, "data": b"\xff"}), b"\xc1"])

    rows = backlog.frame(session, format="msgpack", columns="id bigint, data binary").collect()

    assert [(row.id, row.data, row._raw) for row in rows] == [(1, b"\xff", None), (None, None, b"\xc1")]


def test_nested_types_are_parsed(session: Any, backlog: Backlog) -> None:
    event = {
        "user": {"name": "a", "tags": ["x", None], "home": {"lat": 1.5}},
        "counts": {"a": 1, "b": None},
        "points": [{"x": 1}, {"x": 2, "y": 3}],
        "day": "2026-01-31",
        "price": "12.30",
        "ok": True,
        "small": 7,
    }
    backlog.put([json.dumps(event).encode(), b"{}"])
    schema = (
        "user struct<name:string,tags:array<string>,home:struct<lat:double>>, counts map<string,bigint>, "
        "points array<struct<x:int,y:int>>, day date, price decimal(10,2), ok boolean, small smallint"
    )

    first, empty = backlog.frame(session, schema, format="json").collect()

    assert first.asDict(recursive=True) == {
        "user": {"name": "a", "tags": ["x", None], "home": {"lat": 1.5}},
        "counts": {"a": 1, "b": None},
        "points": [{"x": 1, "y": None}, {"x": 2, "y": 3}],
        "day": date(2026, 1, 31),
        "price": Decimal("12.30"),
        "ok": True,
        "small": 7,
    }
    assert set(empty.asDict().values()) == {None}


def test_times_are_the_same_instants_whatever_the_sessions_time_zone(session: Any, backlog: Backlog) -> None:
    backlog.put([Record(b'{"at": "2026-01-31T12:00:00Z", "wall": "2026-01-31T12:00:00"}', timestamp_ms=AT_MS)])
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        raw = backlog.frame(session).selectExpr("string(timestamp)", "unix_micros(timestamp)").first()
        frame = backlog.frame(session, "at timestamp, wall timestamp_ntz", format="json")
        parsed = frame.selectExpr("string(at)", "unix_seconds(at)", "string(wall)").first()
    finally:
        session.conf.set("spark.sql.session.timeZone", before)

    assert tuple(raw) == ("2026-01-31 17:45:00.123", AT_MS * 1000)
    assert tuple(parsed) == ("2026-01-31 17:45:00", 1769860800, "2026-01-31 12:00:00")


def test_a_read_that_is_used_twice_and_cached_has_the_same_rows(session: Any, backlog: Backlog) -> None:
    backlog.put(BAD, BAD)
    frame = backlog.frame(session, format="json", columns="id bigint")
    good, bad = frame.where("_error is null").select("id"), frame.where("_error is not null").select("_raw")
    assert (good.count(), bad.count()) == (4, 4)

    with_cache = frame.cache()
    try:
        assert sorted(with_cache.select("id").where("id is not null").toPandas().id.tolist() if False else []) == []
        assert with_cache.count() == 8
        backlog.store.delete([entry.location for entry in backlog.entries()])
        assert sorted(row.id for row in with_cache.where("_error is null").collect()) == [1, 1, 4, 4]
    finally:
        with_cache.unpersist()


def test_what_is_set_aside_comes_with_its_reason_and_its_bytes(backlog: Backlog) -> None:
    backlog.put(BAD)

    rows = backlog_rows(backlog.reader(StructType([ID, *SET_ASIDE]), format="json"))

    assert [(row["id"], row["_raw"]) for row in rows] == [(1, None), (4, None), (None, BAD[1]), (None, BAD[2])]
    assert [row["_error"] is not None for row in rows] == [False, False, True, True]
    assert rows[3]["_error"] == "parse error: the field 'id' is a string here, and the column is int64"


def test_what_is_set_aside_may_stand_anywhere_among_the_columns(backlog: Backlog) -> None:
    backlog.put(BAD)
    schema = StructType([SET_ASIDE[1], ID, SET_ASIDE[0]])

    rows = backlog_rows(backlog.reader(schema, format="json"))

    assert [list(row) for row in rows] == [["_raw", "id", "_error"]] * 4
    assert [(row["id"], row["_raw"]) for row in rows] == [(1, None), (4, None), (None, BAD[1]), (None, BAD[2])]


@pytest.mark.parametrize(("field", "found"), [(SET_ASIDE[1], BAD[1]), (SET_ASIDE[0], "parse error")])
def test_one_of_the_two_columns_is_enough(backlog: Backlog, field: StructField, found: Any) -> None:
    backlog.put(BAD[:2])

    rows = backlog_rows(backlog.reader(StructType([ID, field]), format="json"))

    assert rows[0] == {"id": 1, field.name: None}
    assert rows[1][field.name].startswith(found)


def test_payloads_that_are_skipped_leave_no_row(backlog: Backlog) -> None:
    backlog.put(BAD, BAD[1:2])

    rows = backlog_rows(backlog.reader(StructType([ID, *SET_ASIDE]), format="json", onError="skip"))

    assert rows == [{"id": 1, "_error": None, "_raw": None}, {"id": 4, "_error": None, "_raw": None}]


@pytest.mark.parametrize("schema", [StructType([ID]), StructType([ID, *SET_ASIDE])], ids=["plain", "with _error"])
def test_a_read_that_fails_on_errors_names_sequence_location_and_record(backlog: Backlog, schema: StructType) -> None:
    backlog.put([b'{"id": 0}'], BAD)
    location = backlog.entries()[1].location

    with pytest.raises(ParseFailed) as failed:
        backlog_rows(backlog.reader(schema, format="json", onError="fail"))

    text = str(failed.value)
    assert text.startswith(f"2 of records 0 to 3 of sequence 1 ({location}) in file://")
    assert "the first is record 1: parse error" in text


def test_a_record_is_named_by_its_place_in_the_batch_in_a_row_range_too(backlog: Backlog) -> None:
    backlog.put([b'{"id": 1}'] * 17 + [b"no JSON"] + [b'{"id": 1}'] * 2)
    reader = backlog.reader(StructType([ID]), format="json", onError="fail", targetPartitionBytes=30)

    with pytest.raises(ParseFailed, match="the first is record 17: parse error"):
        backlog_rows(reader)


def test_where_a_schema_has_no_place_for_what_is_set_aside_it_fails_and_says_so(backlog: Backlog) -> None:
    backlog.put(BAD)

    with pytest.raises(ParseFailed, match="to set such rows aside, name _error and _raw in the schema"):
        backlog_rows(backlog.reader(StructType([ID]), format="json"))


def test_a_payload_without_a_field_that_is_not_null_does_not_parse(backlog: Backlog) -> None:
    backlog.put([b'{"id": 1}', b"{}", b'{"id": null}', b'{"id": 4}'])
    schema = StructType([StructField("id", LongType(), nullable=False)])

    rows = backlog_rows(backlog.reader(schema, format="json", onError="skip"))

    assert [row["id"] for row in rows] == [1, 4]


def test_a_failing_read_says_so_through_spark(session: Any, backlog: Backlog) -> None:
    backlog.put(BAD)

    with pytest.raises(Exception, match=r"penstock\.errors\.ParseFailed: 2 of records 0 to 3 of sequence 0"):
        backlog.frame(session, format="json", columns="id bigint", onError="fail").collect()


def test_a_wrong_option_says_so_through_spark(session: Any, backlog: Backlog) -> None:
    with pytest.raises(Exception, match=r"InvalidInput: maxRecordsPerTrigger must be an integer, 1 or more, not 0"):
        backlog.frame(session, maxRecordsPerTrigger="0").collect()


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


# Ctrl-C, and credentials.


def read_slowly(parent: Parent, url: str) -> int:
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


SECRETS = {
    "access_key_id": "AKIAEXAMPLEKEYID",
    "secret_access_key": "an-aws-secret",
    "session_token": "a-session-token",
}


@pytest.fixture
def strict_s3() -> Iterator[str]:
    """A server that answers everybody as S3 answers a wrong secret: with all that was signed."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = SECRETS["access_key_id"]
            body = (
                "<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated does not match"
                f"</Message><AWSAccessKeyId>{key}</AWSAccessKeyId><StringToSign>{self.headers['authorization']} "
                f"{SECRETS['session_token']}</StringToSign></Error>"
            ).encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_GET  # noqa: N815  the names are the server's

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def all_text(error: Any) -> str:
    """Everything that Spark tells of an error: what is printed, and what is not."""
    parts = [str(error), repr(error), str(getattr(error, "_stackTrace", ""))]
    cause = getattr(error, "_cause", None) or error.__cause__
    return "\n".join([*parts, all_text(cause) if cause is not None else ""])


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_read_with_a_wrong_secret_says_why_and_tells_no_credential(
    session: Any, strict_s3: str, tmp_path: Path, kind: str
) -> None:
    reach = {"endpoint": strict_s3, "allow_http": "true", "region": "us-east-1", "max_retries": "0", **SECRETS}
    place = Backlog(f"s3://{BUCKET}/events", reach)

    with pytest.raises(Exception, match="SignatureDoesNotMatch") as failed:
        if kind == "batch":
            place.frame(session).collect()
        else:
            writing = place.stream(session).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            writing.format("noop").trigger(availableNow=True).start().awaitTermination()

    assert [secret for secret in SECRETS.values() if secret in all_text(failed.value)] == []


def test_a_wrong_option_beside_credentials_tells_none(session: Any) -> None:
    place = Backlog(f"s3://{BUCKET}/events", {**SECRETS, "acess_key": "misspelt-secret"})

    with pytest.raises(Exception, match="InvalidInput") as failed:
        place.frame(session).collect()

    assert [text for text in (*SECRETS.values(), "misspelt-secret") if text in all_text(failed.value)] == []


def test_no_credential_is_in_a_reader_as_it_is_shown() -> None:
    place = Backlog("s3://bucket/events", SECRETS)

    shown = "".join(repr(one) + repr(vars(one)) for one in (place.reader(), place.stream_reader()))

    assert [secret for secret in SECRETS.values() if secret in shown] == []


def test_a_schema_may_have_nothing_but_what_is_set_aside(backlog: Backlog) -> None:
    backlog.put(BAD[:2])
    schema = StructType([StructField("_error", StringType()), StructField("_raw", BinaryType())])

    rows = backlog_rows(backlog.reader(schema, format="json"))

    assert [row["_raw"] for row in rows] == [None, b"no JSON"]
