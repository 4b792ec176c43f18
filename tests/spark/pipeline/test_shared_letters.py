"""Dead letters of several pipelines in one table, and letters that come back into a pipeline that deduplicates."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import open_store, peek
from penstock.buffer import Groups
from penstock.engine import Filter, Replay, StoredLetter, Target, letters_in
from penstock.spark import Pipeline
from penstock.spark.tables.existing import OpenedTable, open_existing
from tests.spark.kills.kinds import ICEBERG, TABLES, catalog_of, name_of, to_letters
from tests.support.pipeline_places import Places

MANIFEST = "ingest/manifest"
GOOD, BAD = [b'{"id": 1}', b'{"id": 2}'], [b'{"id": "x"}', b"{"]

pytestmark = pytest.mark.usefixtures("nothing_is_synced")


def run(spark: Any, kind: str, source: Path, top: Path, letters: Path, group: str = "default") -> None:
    """Run a pipeline of its own, with a table for its rows, and the dead letters in one that others write too."""
    pipeline = Pipeline(source, top / f"checkpoint-{group}", options={"group": group}).parse("json", "id bigint")
    to_letters(kind, pipeline, letters).to_parquet(top / f"rows-{group}").run(spark, "available_now")


def opened(kind: str, letters: Path) -> OpenedTable:
    if kind == ICEBERG:
        return open_existing(name_of(letters), catalog=catalog_of(letters))
    return open_existing(str(letters))


def replay_into(kind: str, letters: Path, buffer: Path) -> int:
    if not buffer.exists():
        Groups(buffer).create("audit")
    return Replay(opened(kind, letters), Target(open_store(str(buffer)), MANIFEST)).run(Filter()).replayed


@pytest.mark.parametrize("kind", TABLES)
def test_letters_of_two_buffers_in_one_table_are_replayed_once_each(kind: str, spark: Any, tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    for name in ("one", "two"):
        places = Places(tmp_path / name)
        places.put([*GOOD, *BAD], BAD)  # the same events, at the same places of both buffers
        run(spark, kind, places.events, tmp_path / name, letters)
    stored = list(letters_in(opened(kind, letters).rows()))
    assert len({letter.id for letter in stored}) == len(stored) == 8
    assert [replay_into(kind, letters, tmp_path / "again") for _ in range(2)] == [8, 0]
    assert Counter(record.value for record in peek(tmp_path / "again", 100)) == dict.fromkeys(BAD, 4)


def test_letters_of_two_groups_in_one_table_are_two_letters(spark: Any, tmp_path: Path) -> None:
    letters, places = tmp_path / "letters", Places(tmp_path / "one")
    places.put([*GOOD, *BAD])
    Groups(places.events).create("audit", "earliest")
    for group in ("default", "audit"):
        run(spark, TABLES[0], places.events, tmp_path, letters, group)
    assert len({letter.id for letter in letters_in(opened(TABLES[0], letters).rows())}) == 4
    assert [replay_into(TABLES[0], letters, tmp_path / "again") for _ in range(2)] == [4, 0]
    assert Counter(record.value for record in peek(tmp_path / "again", 100)) == dict.fromkeys(BAD, 2)


@pytest.mark.slow
def test_a_letter_that_is_replayed_into_a_pipeline_that_deduplicates_is_one_row(spark: Any, tmp_path: Path) -> None:
    """Also where two letters are mended to the same key, or to one that is there."""
    places = Places(tmp_path)
    places.put([*GOOD, b'{"id": "3"}', b'{"id": "3", "n": 2}', b'{"id": "1"}'])
    pipeline = Pipeline(places.events, places.checkpoint).parse("json", "id bigint").deduplicate(["id"])
    pipeline = pipeline.dead_letters(places.dead_letters).to_parquet(places.table)
    pipeline.run(spark, "available_now")
    assert [len(places.rows()), len(places.letters())] == [2, 3]

    def mend(letter: StoredLetter) -> bytes:
        return (letter.payload or b"").replace(b'"3"', b"3").replace(b'"1"', b"1")

    target = Target(open_store(str(places.events)), MANIFEST)
    for replayed in (3, 0):
        assert Replay(opened(TABLES[0], places.dead_letters), target, mend).run(Filter()).replayed == replayed
        pipeline.run(spark, "available_now")
        assert [row["id"] for row in places.rows()] == [1, 2, 3]
        assert len(places.letters()) == 3
