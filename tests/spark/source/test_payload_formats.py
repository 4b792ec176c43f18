"""Payloads in other formats than JSON and MessagePack, parsed where they are read."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from penstock import Record
from tests.spark.pipeline.test_mixed_formats import AVRO, RECORDS, in_the_engine
from tests.support.backlogs import Backlog
from tests.support.protobuf_messages import message_class


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_a_mixed_stream_is_the_same_table_as_in_the_engine(session: Any, backlog: Backlog) -> None:
    backlog.put(RECORDS[:20], RECORDS[20:])
    frame = backlog.frame(
        session, format="auto", columns="id bigint, event string", avroSchema=msgspec.json.encode(AVRO).decode()
    )
    rows, letters = in_the_engine()
    expected: list[tuple[Any, ...]] = [(row["id"], row["event"], None, None) for row in rows]
    expected += [(None, None, reason, bytearray(payload)) for payload, reason in letters]
    assert rows_of(frame) == sorted(expected, key=repr)


def test_any_json_value_is_read_into_one_column(session: Any, backlog: Backlog) -> None:
    backlog.put([b"[1, 2]", b'"x"', b" null ", b'{"a": 1.50}', b"1 2"])
    frame = backlog.frame(session, format="json-values", columns="value string")
    assert [row.value for row in frame.collect()] == ["[1,2]", '"x"', "null", '{"a":1.50}', None]


def test_csv_and_protobuf_are_read_with_their_schemas(session: Any, backlog: Backlog) -> None:
    descriptors, name = message_class()
    backlog.put(
        [
            Record(b"7;x", headers=[("content-type", b"text/csv; charset=utf-8")]),
            Record(b"\x08\x08", headers=[("Content-Type", b"application/x-protobuf")]),
            b'{"id": 9}',
        ]
    )
    frame = backlog.frame(
        session,
        format="auto",
        columns="id bigint",
        csvColumns="id, event",
        csvDelimiter=";",
        protobufDescriptors=base64.b64encode(descriptors).decode(),
        protobufMessage=name,
    )
    assert [(row.id, row._error) for row in frame.collect()] == [(7, None), (8, None), (9, None)]
