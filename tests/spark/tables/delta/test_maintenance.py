"""Compaction and vacuum, alone and while blocks are committed and the table is read."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampNTZType

from penstock.errors import Conflict, InvalidInput
from penstock.spark.tables.contract import Compacted, Position, Vacuumed
from penstock.spark.tables.delta.table import open_delta
from tests.support.delta_blocks import QUERY, block, commit, data_files, ids, listed_files, position, read, rows, stage

DAY = 24 * 3600.0


def age(place: Path, name: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(place / name, (at, at))


def test_small_files_become_one_for_each_partition_and_positions_stay(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    for number in range(10):
        commit(table, block(number, number + 1), rows(number, number + 1, "ab"[number % 2]))
    before = sum((tmp_path / name).stat().st_size for name in listed_files(tmp_path))
    done = table.compact()
    after = sum((tmp_path / name).stat().st_size for name in listed_files(tmp_path))
    assert done == Compacted(10, 2, before, after)
    assert table.compact() == Compacted()
    assert ids(tmp_path) == list(range(10))
    assert table.position(QUERY) == Position(10, 9, "ingest/000010.arrow", 1)
    assert not commit(table, block(9, 10))
    assert commit(table, block(10, 11))


def test_files_that_were_replaced_are_removed_when_they_are_old(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    for number in range(3):
        commit(table, block(number, number + 1))
    replaced = listed_files(tmp_path)
    table.compact()
    size = sum((tmp_path / name).stat().st_size for name in replaced)
    assert table.vacuum(DAY) == Vacuumed()
    assert table.vacuum(0, dry_run=True) == Vacuumed(3, size)
    assert data_files(tmp_path) == replaced | listed_files(tmp_path)
    assert table.vacuum(0) == Vacuumed(3, size)
    assert data_files(tmp_path) == listed_files(tmp_path)
    assert ids(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("options", [{}, {"merge_on": ["id"]}], ids=["append", "merge"])
def test_a_block_that_is_about_to_be_committed_is_not_vacuumed(tmp_path: Path, options: dict[str, Any]) -> None:
    table = open_delta(str(tmp_path), **options)
    commit(table, block(0, 5))
    staged = stage(table, block(5, 9))
    for name in data_files(tmp_path):
        age(tmp_path, name, 20 * 3600)
    assert open_delta(str(tmp_path), **options).vacuum(0) == Vacuumed()
    assert staged.commit()
    assert ids(tmp_path) == list(range(9))


@pytest.mark.parametrize("options", [{}, {"merge_on": ["id"]}, {"partition_by": ["event"]}], ids=str)
def test_files_of_attempts_that_were_never_committed_are_removed_after_a_day(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = open_delta(str(tmp_path), **options)
    commit(table, block(0, 5))
    before = data_files(tmp_path)
    stage(table, block(5, 9))
    left = data_files(tmp_path) - before
    assert len(left) == 2
    for name in data_files(tmp_path):
        age(tmp_path, name, 2 * DAY)
    assert table.vacuum(3 * DAY) == Vacuumed()
    assert table.vacuum(0).files == 2
    assert data_files(tmp_path) == before
    assert commit(table, block(5, 9))
    assert ids(tmp_path) == list(range(9))


def test_files_of_others_and_locks_stay(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path), partition_by=["event"])
    commit(table, block(0, 5))
    (tmp_path / "event=click" / "notes.txt").write_text("mine")
    kept = {file for file in tmp_path.rglob("*") if file.is_file()}
    for file in kept:
        age(tmp_path, str(file), 9 * DAY)
    assert table.vacuum(0) == Vacuumed()
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == kept


def test_a_merge_in_between_makes_a_compaction_begin_again(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    for number in range(3):
        commit(table, block(number, number + 1))
    other = open_delta(str(tmp_path), merge_on=["id"])
    left = ["compacting"]

    def step(name: str) -> None:
        if name in left:
            left.remove(name)
            commit(other, block(0, 2, "other.default"), [{"id": 1, "event": "changed"}, {"id": 7, "event": "new"}])

    table.step = step
    table.compact()
    assert left == []
    assert {row["id"]: row["event"] for row in read(tmp_path).to_pylist()} == {
        0: "click",
        1: "changed",
        2: "click",
        7: "new",
    }
    assert len(listed_files(tmp_path)) == 1


def test_of_two_compactions_at_once_the_one_that_began_first_gives_up_and_each_row_stays_once(tmp_path: Path) -> None:
    table, other = open_delta(str(tmp_path)), open_delta(str(tmp_path))
    for number in range(4):
        commit(table, block(number, number + 1))

    def compact_by_another(step: str) -> None:
        if step == "compacting":
            other.compact()

    table.step = compact_by_another
    with pytest.raises(Conflict, match="another compaction of it has begun"):
        table.compact()
    assert ids(tmp_path) == list(range(4))
    assert len(listed_files(tmp_path)) == 1
    table.step = lambda _: None
    assert table.compact() == Compacted()


def test_a_block_that_is_staged_while_a_compaction_begins_is_not_staged_again(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    for number in range(3):
        commit(table, block(number, number + 1))
    staged = stage(table, block(3, 4))
    open_delta(str(tmp_path)).compact()
    assert staged.commit()
    assert ids(tmp_path) == list(range(4))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"merge_on": ["id"]}], ids=["append", "merge"])
def test_a_table_is_compacted_and_vacuumed_while_it_is_written_and_read(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    commit(open_delta(str(tmp_path), **options), block(0, 1))
    over = threading.Event()
    problems: list[object] = []
    rounds = {"read": 0, "kept": 0}

    def write() -> None:
        table = open_delta(str(tmp_path), **options)
        while (first := position(table)) < 120:
            commit(table, block(first, first + 2))

    def read_all() -> None:
        while not over.is_set():
            found = ids(tmp_path)
            if found != list(range(len(found))):
                problems.append(found)
            rounds["read"] += 1

    def maintain() -> None:
        table = open_delta(str(tmp_path), **options)
        while not over.is_set():
            table.compact()
            table.vacuum(3600)
            rounds["kept"] += 1

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)
            raise

    helpers = [threading.Thread(target=guarded, args=(work,)) for work in (read_all, maintain)]
    for helper in helpers:
        helper.start()
    try:
        write()
    finally:
        over.set()
        for helper in helpers:
            helper.join()
    assert problems == []
    assert rounds["read"] > 1
    assert rounds["kept"] > 1
    assert ids(tmp_path) == list(range(121))


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1"])
def test_an_age_that_is_none_is_refused(tmp_path: Path, wrong: Any) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    with pytest.raises(InvalidInput, match="older_than must be a number of seconds, 0 or more"):
        table.vacuum(wrong)


def test_a_compaction_leaves_the_protocol_and_the_metadata_of_columns_as_they_were(tmp_path: Path) -> None:
    columns = StructType([StructField("id", LongType()), StructField("wall", TimestampNTZType())])
    table = open_delta(str(tmp_path / "table"))
    assert commit(table, block(0, 1), [{"id": 0, "wall": 0}], columns)
    assert commit(table, block(1, 2), [{"id": 1, "wall": 1}], columns)
    deltalake.DeltaTable(tmp_path / "table").alter.set_column_metadata("id", {"comment": "a number"})
    before = deltalake.DeltaTable(tmp_path / "table").protocol()
    assert table.compact().files_after == 1
    after = deltalake.DeltaTable(tmp_path / "table")
    assert after.protocol() == before
    assert after.schema().fields[0].metadata["comment"] == "a number"
    assert commit(open_delta(str(tmp_path / "table")), block(2, 3), [{"id": 2, "wall": 2}], columns)
    assert ids(tmp_path / "table") == [0, 1, 2]
