"""Payloads that are parsed where they are read: columns, what is set aside, and what fails."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock import Record
from penstock.errors import ParseFailed
from penstock.spark.source.schemas import SET_ASIDE
from tests.support.backlogs import Backlog, backlog_rows

AT_MS = 1769860800123
ID = StructField("id", LongType())
BAD = [b'{"id": 1}', b"no JSON", b'{"id": "x"}', b'{"id": 4}']


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


def test_a_schema_may_have_nothing_but_what_is_set_aside(backlog: Backlog) -> None:
    backlog.put(BAD[:2])
    schema = StructType([StructField("_error", StringType()), StructField("_raw", BinaryType())])

    rows = backlog_rows(backlog.reader(schema, format="json"))

    assert [row["_raw"] for row in rows] == [None, b"no JSON"]
