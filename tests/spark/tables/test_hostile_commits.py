"""Commits of blocks that anyone with the bucket could have written: `CorruptData`, and nothing of theirs is loaded."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StructType

from penstock.errors import CorruptData
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.commits import BlockCommit

SCHEMA = StructType().add("n", LongType())


def with_schema(schema: object) -> bytes:
    commit = BlockCommit.of("query-000000000000", BlockId("query", 1, 2), "0" * 32, SCHEMA, ()).encode()
    return msgspec.json.encode(msgspec.json.decode(commit) | {"schema": schema})


def column(kind: object) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": "n", "type": kind, "nullable": True, "metadata": {}}]}


def udt(name: object, **more: object) -> dict[str, Any]:
    return {"type": "udt", "class": None, "pyClass": name, "sqlType": "long", **more}


@pytest.mark.parametrize(
    "kind",
    [
        udt("antigravity.Udt"),
        udt("antigravity.Udt", serializedClass="gASVAAAAAAAAAA=="),
        udt(None),
        {"type": "array", "elementType": udt("antigravity.Udt"), "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": udt("antigravity.Udt"), "valueContainsNull": True},
        column(udt("antigravity.Udt")),
    ],
    ids=str,
)
def test_a_class_that_a_commit_names_is_not_loaded(kind: object) -> None:
    sys.modules.pop("antigravity", None)
    with pytest.raises(CorruptData, match=r"place/_commit.* no class is loaded because a table names it"):
        BlockCommit.decode(with_schema(column(kind)), "place/_commit.json")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "data",
    [
        with_schema({}),
        with_schema({"fields": 5}),
        with_schema({"fields": [[]]}),
        with_schema(column(5)),
        with_schema(column("no such type")),
        with_schema(None).replace(b'"schema":null', b'"schema":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000),
        with_schema(None).replace(b'"schema":null', b'"schema":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        with_schema(SCHEMA.jsonValue()).replace(b'"version":1', b'"version":' + b"9" * 1_000_000),
    ],
    ids=[
        "an empty schema",
        "fields that are a number",
        "a field that is a list",
        "a type that is a number",
        "an unknown type",
        "deep objects",
        "deep lists",
        "a long version",
    ],
)
def test_a_commit_that_cannot_be_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData, match=r"place/_commit\.json"):
        BlockCommit.decode(data, "place/_commit.json")


def test_a_commit_is_read_as_it_was_written() -> None:
    assert BlockCommit.decode(with_schema(SCHEMA.jsonValue()), "place").columns() == SCHEMA
