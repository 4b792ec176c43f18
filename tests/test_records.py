"""Records and their Arrow columns, both ways."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.errors import CorruptData, InvalidInput
from penstock.records import (
    HEADERS_TYPE,
    RECORD_SCHEMA,
    records_from_arrow,
    records_to_arrow,
    values_to_arrow,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.builds(
    Record,
    st.binary(max_size=20),
    key=st.none() | st.binary(max_size=8),
    headers=st.none() | st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
    timestamp_ms=st.none() | INT64,
)


@given(st.lists(RECORDS, max_size=20))
def test_records_come_back_as_they_went(records: list[Record]) -> None:
    batch = records_to_arrow(records)
    batch.validate(full=True)
    assert records_from_arrow(batch) == records


@given(st.lists(RECORDS, max_size=20))
def test_a_column_is_there_only_where_some_record_has_it(records: list[Record]) -> None:
    expected = ["value"]
    expected += ["key"] if any(r.key is not None for r in records) else []
    expected += ["headers"] if any(r.headers is not None for r in records) else []
    expected += ["timestamp"] if any(r.timestamp_ms is not None for r in records) else []
    schema = records_to_arrow(records).schema
    assert schema.names == expected
    assert all(schema.field(name) == RECORD_SCHEMA.field(name) for name in expected)


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_payloads_are_records_with_a_value_alone(values: list[bytes]) -> None:
    assert records_to_arrow(values) == values_to_arrow(values)
    assert records_from_arrow(values_to_arrow(values)) == [Record(value) for value in values]


def test_the_schema_is_the_one_of_the_format() -> None:
    assert (
        pa.schema(
            [
                ("value", pa.binary()),
                ("key", pa.binary()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
                ("timestamp", pa.timestamp("ms", tz="UTC")),
            ]
        )
        == RECORD_SCHEMA
    )


def test_payloads_go_into_arrow_without_an_object_each() -> None:
    values = [b"x%d" % number for number in range(50_000)]
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        batch = values_to_arrow(values)
        new_objects = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert batch.num_rows == 50_000
    assert new_objects < 100


def test_header_order_repeats_and_emptiness_are_kept() -> None:
    headers = [("b", b"1"), ("a", b"2"), ("b", b"1"), ("", b"")]
    kept, empty, none = records_from_arrow(
        records_to_arrow([Record(b"", headers=headers), Record(b"", headers=[]), Record(b"")])
    )
    assert kept.headers == tuple(headers)
    assert empty.headers == ()
    assert none.headers is None


def test_buffers_become_bytes_so_a_record_can_be_a_key() -> None:
    record = Record(bytearray(b"a"), key=memoryview(b"k"), headers=[("h", bytearray(b"v"))])  # type: ignore[arg-type,list-item]
    assert {record: 1}[Record(b"a", key=b"k", headers=(("h", b"v"),))] == 1


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"value": "text"}, "value"),
        ({"value": None}, "value"),
        ({"value": b"", "key": "k"}, "key"),
        ({"value": b"", "headers": {"a": b"1"}}, "headers"),
        ({"value": b"", "headers": [("a", "text")]}, "headers"),
        ({"value": b"", "headers": [("a",)]}, "headers"),
        ({"value": b"", "headers": ["ab"]}, "headers"),
        ({"value": b"", "headers": [("\ud800", b"")]}, "headers"),
        ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms"),
        ({"value": b"", "timestamp_ms": True}, "timestamp_ms"),
        ({"value": b"", "timestamp_ms": 1 << 63}, "timestamp_ms"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        Record(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", ["text", None, 5, ["nested"]])
def test_an_entry_that_is_no_record_is_refused(entry: object) -> None:
    with pytest.raises(InvalidInput):
        records_to_arrow([b"fine", entry])  # type: ignore[list-item]


def test_a_payload_too_large_for_arrow_is_refused() -> None:
    with pytest.raises(InvalidInput, match="2 GiB"):
        values_to_arrow([bytes(1 << 31)])


@pytest.mark.slow
def test_a_batch_too_large_for_arrow_is_refused() -> None:
    with pytest.raises(InvalidInput, match="2 GiB"):
        values_to_arrow([bytes(1 << 30)] * 2)


def test_header_text_that_is_not_utf8_is_corrupt_data() -> None:
    keys = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    pairs = pa.StructArray.from_arrays([keys, pa.array([b"v"])], fields=list(HEADERS_TYPE.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    with pytest.raises(CorruptData, match="UTF-8"):
        records_from_arrow(pa.record_batch({"value": pa.array([b"a"]), "headers": headers.cast(HEADERS_TYPE)}))


@pytest.mark.parametrize("value", [None, 5, ["nested"], "\ud800"])
def test_a_payload_that_is_no_bytes_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        values_to_arrow([b"fine", value])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"key": pa.array([b"k"])}),
        pa.record_batch({"value": pa.array(["text"])}),
        pa.record_batch({"value": pa.array([b"a"]), "other": pa.array([1])}),
        pa.record_batch({"value": pa.array([b"a"]), "timestamp": pa.array([1], pa.timestamp("us", tz="UTC"))}),
        pa.record_batch({"value": pa.array([None], pa.binary())}),
        pa.record_batch({"value": pa.array([b"a"]), "headers": pa.array([[None]], HEADERS_TYPE)}),
        pa.record_batch([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]),
    ],
)
def test_columns_that_are_not_a_records_are_corrupt_data(batch: pa.RecordBatch) -> None:
    with pytest.raises(CorruptData):
        records_from_arrow(batch)
