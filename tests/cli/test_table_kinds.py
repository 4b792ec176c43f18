"""`penstock table` and `penstock dlq` on tables of every kind: what is done is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import peek
from penstock.buffer import Groups
from penstock.errors import NotFound
from tests.support.command import Here

pytest.importorskip("pyspark")

from penstock.spark.tables.parquet.table import open_table
from tests.support.plain_tables import put_letters


def typed(kind: str, top: Path) -> tuple[Any, list[str]]:
    """A table of a kind, and how it is typed."""
    if kind == "parquet":
        return open_table(None, str(top / "letters")), [str(top / "letters")]
    if kind == "delta":
        delta = pytest.importorskip("penstock.spark.tables.delta.table")
        pytest.importorskip("deltalake")
        return delta.open_delta(str(top / "letters")), [str(top / "letters")]
    iceberg = pytest.importorskip("penstock.spark.tables.iceberg.table")
    pytest.importorskip("pyiceberg")
    (top / "lake").mkdir()
    properties = {"warehouse": str(top / "lake")}
    table = iceberg.open_iceberg("lake.web.letters", catalog=properties)
    return table, ["lake.web.letters", "--catalog", f"warehouse={top / 'lake'}"]


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_letters_are_listed_compacted_and_replayed_once(tmp_path: Path, here: Here, kind: str) -> None:
    table, words = typed(kind, tmp_path)
    for block in range(3):
        put_letters(
            table, [{"payload": b"%d" % block, "key": b"k", "headers": [{"key": "h", "value": b"v"}]}, {}], block
        )
    buffer = str(tmp_path / "events")
    Groups(buffer).create("audit")
    shown = json.loads(here("table", "show", *words, "--json").out)
    assert (shown["kind"], shown["rows"], shown["files"]) == (kind, 6, 3)
    before = {letter["id"] for letter in json.loads(here("dlq", "list", *words, "--each", "--json").out)}
    first = json.loads(here("dlq", "replay", *words, "--to", buffer, "--since", "2026-01-31T12:02:00Z", "--json").out)
    assert first["replayed"] == 2
    compacted = json.loads(here("table", "compact", *words, "--json").out)
    assert (compacted["files_before"], compacted["files_after"]) == (3, 1)
    after = {letter["id"] for letter in json.loads(here("dlq", "list", *words, "--each", "--json").out)}
    assert after == before
    assert len(after) == 6
    rest = json.loads(here("dlq", "replay", *words, "--to", buffer, "--json").out)
    assert (rest["replayed"], rest["skipped"]) == (4, 2)
    events = peek(buffer, 100)
    assert sorted(event.value for event in events) == [b"0", b"1", b"2", b"{", b"{", b"{"]
    assert {(event.key, event.headers) for event in events if event.value == b"0"} == {(b"k", (("h", b"v"),))}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_reader_whose_files_are_removed_is_told_to_begin_again(tmp_path: Path, here: Here, kind: str) -> None:
    table, words = typed(kind, tmp_path)
    put_letters(table, [{}])
    for file in tmp_path.rglob("*.parquet"):
        if file.parent.name != "_delta_log":
            file.unlink()
    with pytest.raises(NotFound, match="could not read the "):
        list(table.rows())
    assert here("dlq", "list", *words).is_error("could not read the ")


def test_a_wrong_warehouse_is_one_line_and_is_not_created(tmp_path: Path, here: Here) -> None:
    typed("iceberg", tmp_path)
    catalog = ["--catalog", f"warehouse={tmp_path / 'lkae'}"]
    for words in (["dlq", "list"], ["table", "show"], ["table", "vacuum"]):
        assert here(*words, "lake.web.letters", *catalog).is_error("there is no Iceberg catalog in ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"]


def test_a_name_without_a_catalog_is_answered_with_how_to_give_one(here: Here) -> None:
    shown = here("dlq", "list", "lake.web.letters")
    assert shown.is_error("there is no table at lake.web.letters: there is no such directory")
    assert "give its catalog, such as --catalog warehouse=/data/lake" in shown.err
