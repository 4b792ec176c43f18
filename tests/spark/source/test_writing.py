"""Writing DataFrames and streams into buffers, and what a reader of the buffer finds."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructType

from penstock import Consumer, Record, open_store, peek
from penstock.buffer import ConsumerConfig, Manifest, decode_batch
from penstock.errors import InvalidInput
from penstock.records import bytes_of, records_to_arrow
from penstock.spark.source.writing import BufferStreamWriter, BufferWriter, TaskWritten
from penstock.spark.versions import TIME_TYPES
from tests.support.backlogs import Backlog
from tests.support.servers import BUCKET, S3Server

pytestmark = pytest.mark.usefixtures("session")  # Spark's reader of column definitions needs one too

SECRETS = {
    "access_key_id": "AKIAEXAMPLEKEYID",
    "secret_access_key": "an-aws-secret",
    "session_token": "a-session-token",
}


@pytest.fixture
def disk(tmp_path: Path) -> Backlog:
    return Backlog((tmp_path / "buffer").as_uri())


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest) -> Backlog:
    found: Backlog = request.getfixturevalue("disk" if request.param == "disk" else "on_s3")
    return found


def columns(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def objects_in(place: Backlog) -> set[str]:
    return {meta.path for meta in place.store.list_objects() if meta.path.endswith(".batch")}


# Records.


def test_records_are_read_back_with_all_they_have(session: Any, place: Backlog) -> None:
    at = datetime(2026, 1, 31, 12, 0, 0, 123_999, UTC)
    headers = [("a", b"1"), ("a", b"2")]
    frame = session.createDataFrame(
        [
            (bytearray(b"one"), bytearray(b"k"), headers, at),
            (bytearray(b""), None, None, None),
            (bytearray(b"three"), bytearray(b""), [], datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        ],
        "value binary, key binary, headers array<struct<key:string,value:binary>>, timestamp timestamp",
    )

    place.save(frame.coalesce(1))

    assert place.records() == [
        Record(b"one", b"k", headers, int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1000 + 123),
        Record(b""),
        Record(b"three", b"", [], -1),
    ]


ENDINGS = {"opendata": b"\x01\x00", "arrow": b"PSTB"}


@pytest.mark.parametrize(
    ("version", "asked", "written"),
    [(2, None, "arrow"), (1, None, "opendata"), (2, "opendata", "opendata"), (1, "arrow", "arrow")],
)
def test_batches_have_the_format_of_the_manifest_or_the_one_that_was_asked_for(
    session: Any, disk: Backlog, version: int, asked: str | None, written: str
) -> None:
    config = ConsumerConfig(gc=False, manifest_format="opendata" if version == 1 else "native")
    Consumer(disk.store, config).close()
    options = {} if asked is None else {"batchFormat": asked}

    disk.save(session.createDataFrame([("a",)], "value string"), **options)

    assert Manifest.read(disk.store).version == version
    for path in objects_in(disk):
        assert disk.store.get(path).data.endswith(ENDINGS[written])


def test_a_batch_format_that_is_none_is_refused_by_its_name(disk: Backlog) -> None:
    with pytest.raises(InvalidInput, match="batchFormat must be one of arrow, opendata, not 'parquet'"):
        BufferWriter({"path": disk.url, "batchFormat": "parquet"}, columns("value string"), overwrite=False)


def test_keys_on_a_manifest_of_version_1_are_refused_by_naming_them(disk: Backlog) -> None:
    Consumer(disk.store, ConsumerConfig(gc=False, manifest_format="opendata")).close()
    writer = BufferWriter({"path": disk.url}, columns("value string, key string"), overwrite=False)
    with pytest.raises(InvalidInput, match=r"partition 0: .*keeps values only, and a record has key"):
        writer.write(iter([pa.record_batch({"value": ["v"], "key": ["k"]})]))
    assert objects_in(disk) == set()


def test_rows_keep_their_order_within_a_task_and_tasks_theirs(session: Any, disk: Backlog) -> None:
    frame = session.range(0, 1000, 1, numPartitions=3).selectExpr("cast(id as string) as value")

    disk.save(frame, targetBatchBytes="200")

    with Consumer(disk.store) as consumer:
        assert [int(entry) for batch in consumer for entry in batch.entries] == list(range(1000))
    batches = [decode_batch(disk.store.get(path).data) for path in objects_in(disk)]
    sizes = [bytes_of(batch.column("value")) for batch in batches]
    assert len(sizes) > 3
    assert max(sizes) <= 200


def test_the_options_say_where_and_how_objects_are_written(session: Any, disk: Backlog) -> None:
    frame = session.createDataFrame([("a" * 1000, "k")], "value string, key string")

    disk.save(frame, manifestPath="queues/one", dataPathPrefix="data/one", compression="zstd", targetBatchBytes="64k")

    config = ConsumerConfig(manifest_path="queues/one", data_path_prefix="data/one")
    with Consumer(disk.store, config) as consumer:
        batch = consumer.next_batch()
    assert batch is not None
    assert batch.arrow.to_pydict() == {"value": [b"a" * 1000], "key": [b"k"]}
    assert batch.location.startswith("data/one/")
    assert disk.store.head(batch.location).size < 900


def test_a_null_value_fails_the_write_and_nothing_is_enqueued(session: Any, disk: Backlog) -> None:
    frame = session.range(0, 40, 1, numPartitions=2).selectExpr("nullif(cast(id as string), '33') as value")

    with pytest.raises(Exception, match=r"InvalidInput: partition 1: the value of row 13 is null"):
        disk.save(frame, targetBatchBytes="10")

    assert Manifest.read(disk.store).next_sequence == 0
    assert objects_in(disk)  # written before it failed, and in no manifest


def test_a_frame_without_rows_writes_nothing(session: Any, disk: Backlog) -> None:
    disk.save(session.createDataFrame([], "value string"))

    assert not Path(disk.url.removeprefix("file://")).exists()


def test_overwriting_is_refused(session: Any, disk: Backlog) -> None:
    with pytest.raises(Exception, match="InvalidInput: a buffer is append only"):
        session.range(1).write.format("penstock").mode("overwrite").save(disk.url)


def test_a_buffer_in_memory_is_no_place_for_tasks(session: Any, fresh_name: str) -> None:
    with pytest.raises(Exception, match=f"memory://{fresh_name} lives in the process that made it"):
        Backlog(f"memory://{fresh_name}").save(session.range(1))


def test_a_named_write_that_is_run_twice_is_there_once(session: Any, disk: Backlog) -> None:
    frame = session.createDataFrame([("a",)], "value string")

    disk.save(frame, writer="nightly", transaction=7)
    disk.save(frame, writer="nightly", transaction=7)
    disk.save(frame, writer="nightly", transaction=8)

    assert disk.values() == [b"a", b"a"]
    payloads = [entry.metadata[0].payload for entry in Manifest.read(disk.store).entries]
    assert payloads == [b'{"writer":"nightly","transaction":7}', b'{"writer":"nightly","transaction":8}']


# JSON.


def test_any_other_columns_are_written_as_json(session: Any, disk: Backlog) -> None:
    # A time of day is of Spark 4.1 and later.
    clock = "time'12:34:56.789'" if TIME_TYPES else "'12:34:56.789000000'"
    frame = session.sql(f"""
        select 9007199254740993 as big, tinyint(-1) as tiny, true as yes, float(0.1) as single, double(1e300) as twice,
            cast('12345678901234567890.123456789' as decimal(38, 9)) as exact, 'gr\u00fc\u00df "\\\\' as text,
            cast('\u00ff' as binary) as bytes, date'2026-01-31' as day, timestamp'2026-01-31 12:00:00.000001Z' as at,
            timestamp_ntz'2026-01-31 12:00:00' as wall, timestamp_micros(253402300800000000) as far,
            {clock} as clock, interval '1 01:01:01' day to second as length,
            double('NaN') as nan, null as void,
            named_struct('a', 1, 'b', cast(null as int), 'c', named_struct('d', date'2026-01-31')) as struct,
            array(1.5bd, null) as list, array(map('k', timestamp'1969-12-31 23:59:59.999999Z'), map(), null) as maps,
            map(1, named_struct('x', float('inf'), 'y', null), 2, null) as numbered,
            map(date'2026-01-31', array(cast('a' as binary))) as dated, cast(null as string) as nothing,
            from_json('{{}}', 'struct<>') as hollow
    """)

    disk.save(frame)

    assert [json.loads(value) for value in disk.values()] == [
        {
            "big": 9007199254740993,
            "tiny": -1,
            "yes": True,
            "single": 0.1,
            "twice": 1e300,
            "exact": "12345678901234567890.123456789",
            "text": 'gr\u00fc\u00df "\\',
            "bytes": "w78=",
            "day": "2026-01-31",
            "at": "2026-01-31T12:00:00.000001Z",
            "wall": "2026-01-31T12:00:00.000000",
            "far": "10000-01-01T00:00:00.000000Z",
            "clock": "12:34:56.789000000",
            "length": "P1DT3661S",
            "nan": None,
            "struct": {"a": 1, "c": {"d": "2026-01-31"}},
            "list": ["1.5", None],
            "maps": [{"k": "1969-12-31T23:59:59.999999Z"}, {}, None],
            "numbered": {"1": {"x": None}, "2": None},
            "dated": {"2026-01-31": ["YQ=="]},
            "hollow": {},
        }
    ]


def test_json_of_many_rows_keeps_every_row_in_order(session: Any, disk: Backlog) -> None:
    disk.save(session.range(0, 25_000, 1, numPartitions=1).selectExpr("id", "nullif(id % 2, 0) as odd"))

    with Consumer(disk.store) as consumer:
        rows = [json.loads(entry) for batch in consumer for entry in batch.entries]
    assert rows == [{"id": n, "odd": 1} if n % 2 else {"id": n} for n in range(25_000)]


RECORDS = [
    "value binary",
    "value string",
    "key string, value binary",
    "value string, headers array<struct<key:string,value:binary>>, timestamp timestamp",
]
NO_RECORDS = [
    "value int",
    "key binary",
    "value binary, more int",
    "value binary, key int",
    "value binary, timestamp timestamp_ntz",
    "value binary, headers array<struct<key:string,value:string>>",
    "value binary, headers map<string,binary>",
]


@pytest.mark.parametrize("ddl", RECORDS)
def test_value_with_what_belongs_to_records_is_taken_as_it_is(tmp_path: Path, ddl: str) -> None:
    schema = columns(ddl)
    written = direct(tmp_path, ddl).write(iter([arrow_of(schema, {"value": b"a"})]))

    assert stored(tmp_path, written) == [{"value": b"a"}]


@pytest.mark.parametrize("ddl", NO_RECORDS)
def test_everything_else_is_json(tmp_path: Path, ddl: str) -> None:
    schema = columns(ddl)
    written = direct(tmp_path, ddl).write(iter([arrow_of(schema, {})]))

    assert stored(tmp_path, written) == [{"value": b"{}"}]


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("id int, v variant", "'v' is variant"),
        ("a array<interval year>", r"'a\[\]' is interval year"),
        ("m map<binary,int>", "keys of 'm' are binary"),
        ("s struct<m: map<struct<a:int>,int>>", "keys of 's.m' are struct"),
    ],
)
def test_a_column_that_has_no_form_in_json_is_refused_before_anything_runs(
    tmp_path: Path, ddl: str, column: str
) -> None:
    with pytest.raises(InvalidInput, match=column):
        direct(tmp_path, ddl)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = columns("a int").add("a", IntegerType())

    with pytest.raises(InvalidInput, match="'a' is there twice"):
        BufferWriter({"path": str(tmp_path)}, twice, overwrite=False)


@pytest.mark.parametrize(
    "pair", [None, {"key": None, "value": b"v"}, {"key": "k", "value": None}], ids=["pair", "key", "value"]
)
def test_a_header_that_is_not_whole_is_refused_by_its_row(tmp_path: Path, pair: object) -> None:
    whole = {"key": "k", "value": b"v"}
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[whole], None, [], [whole, pair]], kind)
    batch = pa.record_batch({"value": pa.array([b"a"] * 4), "headers": headers})
    writer = direct(tmp_path, "value binary, headers array<struct<key:string,value:binary>>")

    with pytest.raises(InvalidInput, match="the headers of row 3 hold a pair without key or value"):
        writer.write(iter([batch]))


def not_utf8(*texts: bytes) -> pa.Array[Any]:
    """Text as Spark hands it over, who does not look at it."""
    return pa.array(texts, pa.binary()).view(pa.string())


def test_a_header_that_no_reader_would_take_is_refused_by_its_row(tmp_path: Path) -> None:
    pairs = pa.StructArray.from_arrays([not_utf8(b"k", b"\xff"), pa.array([b"v", b"v"])], ["key", "value"])
    batch = pa.record_batch({"value": pa.array([b"a"] * 2), "headers": pa.ListArray.from_arrays([0, 1, 2], pairs)})
    writer = direct(tmp_path, "value binary, headers array<struct<key:string,value:binary>>")

    with pytest.raises(InvalidInput, match="a key in the headers of row 1 is not UTF-8"):
        writer.write(iter([batch]))


def test_text_that_json_cannot_hold_is_refused_by_its_row(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": not_utf8(*[b"good"] * 2000, b"\xff")})

    with pytest.raises(InvalidInput, match="the column 'a' of row 2000 is text that is not UTF-8"):
        direct(tmp_path, "a string").write(iter([batch]))


def test_rows_are_counted_over_all_batches_of_a_task(tmp_path: Path) -> None:
    batches = [pa.record_batch({"value": pa.array([b"a"] * 5)}), pa.record_batch({"value": pa.array([b"a", None])})]

    with pytest.raises(InvalidInput, match="the value of row 6 is null"):
        direct(tmp_path, "value binary").write(iter(batches))


def test_large_columns_are_taken_too(tmp_path: Path) -> None:
    batch = pa.record_batch({"value": pa.array(["a"], pa.large_string()), "key": pa.array([b"k"], pa.large_binary())})

    written = direct(tmp_path, "value string, key binary").write(iter([batch]))

    assert stored(tmp_path, written) == [{"value": b"a", "key": b"k"}]


# Wrong options and columns.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": ""}, "the buffer's place is missing"),
        ({"writer": "w"}, "give both, or neither"),
        ({"transaction": "1"}, "give both, or neither"),
        ({"writer": "", "transaction": "1"}, "give both, or neither"),
        ({"writer": "w", "transaction": "-1"}, "transaction must be an integer, 0 or more"),
        ({"writer": "w", "transaction": "soon"}, "transaction must be an integer, 0 or more"),
        ({"compression": "lz4"}, "compression must be one of none, zstd"),
        ({"targetbatchbytes": "0"}, "targetBatchBytes"),
        ({"targetbatchbytes": "2g"}, "targetBatchBytes"),
        ({"datapathprefix": ""}, "data_path_prefix"),
        ({"manifestpath": "../up"}, "manifest_path"),
        ({"sink": "x"}, "unknown option 'sink'"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        BufferWriter({"path": str(tmp_path), **options}, columns("value binary"), overwrite=False)


def test_a_stream_has_its_name_already(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "writer": "w", "transaction": "1"}

    with pytest.raises(InvalidInput, match="its query id and batch id"):
        BufferStreamWriter(options, columns("value binary"), overwrite=False)


@pytest.mark.parametrize("kind", [BufferWriter, BufferStreamWriter])
def test_no_secret_is_in_a_writer_as_it_is_shown(kind: type) -> None:
    writer = kind({"path": "s3://bucket/x", **SECRETS}, columns("value binary"), overwrite=False)

    assert not any(secret in repr(writer) + repr(vars(writer)) for secret in SECRETS.values())


# Commits.


def direct(path: Path, ddl: str = "value binary", **options: str) -> BufferWriter:
    """A writer as a task has it."""
    writer = BufferWriter({"path": str(path), **options}, columns(ddl), overwrite=False)
    again: BufferWriter = pickle.loads(pickle.dumps(writer))
    return again


def stream_writer(path: Path) -> BufferStreamWriter:
    return BufferStreamWriter({"path": str(path)}, columns("value binary"), overwrite=False)


def arrow_of(schema: StructType, row: dict[str, object]) -> pa.RecordBatch:
    from penstock.spark.versions import arrow_schema

    arrow = arrow_schema(schema)
    return pa.RecordBatch.from_pylist([{field.name: row.get(field.name) for field in arrow}], schema=arrow)


def stored(path: Path, written: TaskWritten) -> list[dict[str, object]]:
    store = open_store(path)
    return [row for one in written.objects for row in decode_batch(store.get(one.location).data).to_pylist()]


def task(path: Path, *values: bytes, query: str | None = "query") -> TaskWritten:
    """What a task tells the driver, as it arrives there."""
    written = direct(path).write(iter([records_to_arrow(list(values))]))
    message: TaskWritten = pickle.loads(pickle.dumps(TaskWritten(written.objects, query)))
    return message


def values_in(path: Path) -> list[bytes]:
    return [record.value for record in peek(path, 100)]


def test_a_commit_enqueues_the_objects_of_all_tasks_in_their_order(tmp_path: Path) -> None:
    messages = [task(tmp_path, b"a"), None, task(tmp_path), task(tmp_path, b"b", b"c")]

    stream_writer(tmp_path).commit(messages, 0)

    assert values_in(tmp_path) == [b"a", b"b", b"c"]


def test_a_task_that_ran_twice_leaves_orphans_and_no_duplicate(tmp_path: Path) -> None:
    zombie, task_of_record = task(tmp_path, b"a"), task(tmp_path, b"a")

    stream_writer(tmp_path).commit([task_of_record], 0)

    assert values_in(tmp_path) == [b"a"]
    assert stored(tmp_path, zombie) == [{"value": b"a"}]


def test_a_stream_commit_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    first = [task(tmp_path, b"a")]
    stream_writer(tmp_path).commit(first, 3)

    stream_writer(tmp_path).commit(first, 3)
    stream_writer(tmp_path).commit([task(tmp_path, b"a")], 3)
    stream_writer(tmp_path).commit([task(tmp_path, b"b")], 4)

    assert values_in(tmp_path) == [b"a", b"b"]


def test_a_block_of_another_query_is_another_block(tmp_path: Path) -> None:
    stream_writer(tmp_path).commit([task(tmp_path, b"a")], 0)
    stream_writer(tmp_path).commit([task(tmp_path, b"b", query="after the checkpoint was deleted")], 0)

    assert values_in(tmp_path) == [b"a", b"b"]


def test_a_stream_commit_that_cannot_name_its_query_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no task of block 0 knows its query"):
        stream_writer(tmp_path).commit([task(tmp_path, b"a", query=None)], 0)


def test_a_block_without_rows_is_no_block(tmp_path: Path) -> None:
    direct(tmp_path).commit([task(tmp_path, query=None)])
    stream_writer(tmp_path).commit([task(tmp_path, query=None), None], 0)

    assert list(open_store(tmp_path).list_objects()) == []


def test_aborting_after_a_commit_whose_reply_was_lost_deletes_nothing(tmp_path: Path) -> None:
    messages = [task(tmp_path, b"a"), None]
    stream_writer(tmp_path).commit(messages, 0)

    stream_writer(tmp_path).abort(messages, 0)
    direct(tmp_path).abort(messages)

    assert values_in(tmp_path) == [b"a"]


def test_a_task_holds_no_more_than_an_object_and_what_comes_in(tmp_path: Path) -> None:
    writer = direct(tmp_path, targetbatchbytes="1000")
    before, most = pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for _ in range(300):
            most = max(most, pa.total_allocated_bytes() - before)
            yield pa.record_batch({"value": pa.array([b"x" * 100] * 10)})

    written = writer.write(batches())

    assert len(written.objects) == 300
    assert most < 20_000


# Streams.


def lines(session: Any, folder: Path, name: str, *texts: str) -> Any:
    folder.mkdir(exist_ok=True)
    partial = folder.parent / name
    partial.write_text("".join(f"{text}\n" for text in texts))
    os.rename(partial, folder / name)
    return session.readStream.text(folder.as_uri())


def test_a_stream_is_appended_block_by_block_and_a_replayed_block_is_there_once(
    session: Any, place: Backlog, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    query = place.start(lines(session, source, "1", "a", "b"), checkpoint)
    query.awaitTermination()
    place.start(lines(session, source, "2", "c"), checkpoint).awaitTermination()
    # As after a crash between the sink's commit and Spark's own.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    before = objects_in(place)

    place.start(session.readStream.text(source.as_uri()), checkpoint).awaitTermination()

    assert place.values() == [b"a", b"b", b"c"]
    payloads = [json.loads(entry.metadata[0].payload) for entry in Manifest.read(place.store).entries]
    assert payloads == [{"writer": query.id, "transaction": 0}, {"writer": query.id, "transaction": 1}]
    assert before < objects_in(place)  # the block did come again, and its object is an orphan


def test_a_checkpoint_that_was_deleted_sends_new_blocks_and_none_is_swallowed(
    session: Any, disk: Backlog, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    for name, texts in (("1", ("a", "b")), ("2", ("c",))):
        disk.start(lines(session, source, name, *texts), checkpoint).awaitTermination()

    shutil.rmtree(checkpoint)  # its blocks count from 0 again, at the same place and under the same application
    shutil.rmtree(source)
    for name, texts in (("3", ("d",)), ("4", ("e", "f"))):
        disk.start(lines(session, source, name, *texts), checkpoint).awaitTermination()

    assert disk.values() == [b"a", b"b", b"c", b"d", b"e", b"f"]


def all_text(error: Any) -> str:
    """Everything that Spark tells of an error: what is printed, and what is not."""
    parts = [str(error), repr(error), str(getattr(error, "_stackTrace", ""))]
    cause = getattr(error, "_cause", None) or error.__cause__
    return "\n".join([*parts, all_text(cause) if cause is not None else ""])


AZURE = {"account_name": "account", "account_key": "YW4tYXp1cmUtYWNjb3VudC1rZXk=", "sas_key": "sv=1&sig=a-signature"}


@pytest.mark.parametrize("kind", ["a bucket that is not there", "a wrong row", "a wrong option", "no server"])
def test_a_failing_stream_says_why_and_tells_no_secret(
    session: Any, s3_server: S3Server, tmp_path: Path, fresh_name: str, kind: str
) -> None:
    reach = {"endpoint": s3_server.endpoint, "allow_http": "true", "region": "us-east-1", "max_retries": "0", **SECRETS}
    frame = lines(session, tmp_path / "source", "1", "a")
    if kind == "a bucket that is not there":
        place, reason = Backlog(f"s3://no-{fresh_name}/x", reach), "NoSuchBucket"
    elif kind == "a wrong row":
        place, reason = Backlog(f"s3://{BUCKET}/{fresh_name}", reach), "the value of row 0 is null"
        frame = frame.selectExpr("nullif(value, 'a') as value")
    elif kind == "a wrong option":
        place, reason = Backlog(f"s3://{BUCKET}/{fresh_name}", reach | AZURE), "InvalidInput"
    else:
        reach = {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "max_retries": "0", **AZURE}
        place, reason = Backlog(f"az://{BUCKET}/{fresh_name}", reach), "penstock.errors.StorageError"

    with pytest.raises(Exception) as failed:  # noqa: PT011  Spark's own, and its text is looked at below
        place.start(frame, tmp_path / "checkpoint").awaitTermination()

    text = all_text(failed.value)
    assert reason in text
    secrets = [*SECRETS.values(), AZURE["account_key"], "a-signature"]
    assert [secret for secret in secrets if secret in text] == []


def test_a_failing_write_tells_no_secret(session: Any, s3_server: S3Server, fresh_name: str) -> None:
    reach = {"endpoint": s3_server.endpoint, "allow_http": "true", "region": "us-east-1", "max_retries": "0", **SECRETS}

    with pytest.raises(Exception, match="NoSuchBucket") as failed:
        Backlog(f"s3://no-{fresh_name}/x", reach).save(session.range(1))

    assert [secret for secret in SECRETS.values() if secret in all_text(failed.value)] == []
