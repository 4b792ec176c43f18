"""Compaction and vacuum of an Iceberg table, alone and beside a pipeline and a reader."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from penstock.errors import InvalidInput
from penstock.spark.tables.contract import Compacted, Vacuumed
from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
from penstock.spark.tables.iceberg.table import open_iceberg
from tests.spark.tables.iceberg.blocks import (
    NAME,
    QUERY,
    ids,
    opened,
    rows_of,
    staged,
    strangers_rows,
    strangers_table,
)
from tests.spark.tables.iceberg.stepping import at_each_step, stepping_catalog

HOUR = 3600.0


def filled(warehouse: Path, blocks: int, **options: Any) -> IcebergTable:
    """A table of small blocks, ten rows each."""
    table = open_iceberg(NAME, catalog=stepping_catalog(warehouse), **options)
    for number in range(blocks):
        assert staged(table, number * 10, number * 10 + 10).commit()
    return table


def make_older(warehouse: Path, seconds: float) -> None:
    for file in warehouse.rglob("*"):
        if file.is_file() and not file.name.startswith("catalog.db"):
            at = file.stat().st_mtime - seconds
            os.utime(file, (at, at))


def test_compaction_writes_small_files_together_and_keeps_rows_and_positions(tmp_path: Path) -> None:
    table = filled(tmp_path, 12)
    position = table.position(QUERY)
    done = table.compact()
    assert (done.files_before, done.files_after) == (12, 1)
    assert done.bytes_before > done.bytes_after > 0
    assert table.info().files == 1
    assert table.position(QUERY) == position
    assert strangers_rows(tmp_path) == rows_of(0, 120)
    # In the order in which the blocks came.
    assert strangers_table(tmp_path).scan().to_arrow()["id"].to_pylist() == list(range(120))
    assert table.compact() == Compacted()


def test_compaction_makes_files_of_about_the_target(tmp_path: Path) -> None:
    table = filled(tmp_path, 9)
    one = max(file.stat().st_size for file in tmp_path.rglob("*.parquet"))
    done = table.compact(target_bytes=3 * one)
    assert (done.files_before, done.files_after) == (9, 3)
    assert strangers_rows(tmp_path) == rows_of(0, 90)


def test_a_block_that_is_staged_before_a_compaction_is_committed_after_it(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    block = staged(table, 30, 40)
    table.compact()
    assert block.commit()
    assert strangers_rows(tmp_path) == rows_of(0, 40)


@pytest.mark.parametrize("step", range(9))
def test_a_block_that_comes_at_any_step_of_a_compaction_stays(tmp_path: Path, step: int) -> None:
    table, other = filled(tmp_path, 4), open_iceberg(NAME, catalog=stepping_catalog(tmp_path))
    steps: list[str] = []

    def race(name: str) -> None:
        steps.append(name)
        if len(steps) == step + 1:
            assert staged(other, 40, 50).commit()

    with at_each_step(race):
        done = table.compact()
    assert len(steps) > step
    assert done.files_before >= 4
    assert done.files_after == 1
    assert strangers_rows(tmp_path) == rows_of(0, 50)
    # Nothing is left of a try that lost.
    table.vacuum(0)
    make_older(tmp_path, 2 * HOUR)
    assert table.vacuum(0).files <= steps.count("metadata")


def test_a_file_that_was_replaced_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
    table = filled(tmp_path, 4)
    other = open_iceberg(NAME, catalog=stepping_catalog(tmp_path), merge_on=["id"], delete_when="name = 'gone'")
    steps: list[str] = []

    def race(name: str) -> None:
        steps.append(name)
        if name == "commit" and steps.count("commit") == 1:
            assert staged(other, 40, 50, [{"id": 3, "name": "gone"}]).commit()

    with at_each_step(race):
        table.compact()
    assert ids(strangers_rows(tmp_path)) == [number for number in range(40) if number != 3]


def test_a_compaction_whose_answer_is_lost_is_found(tmp_path: Path) -> None:
    table = filled(tmp_path, 4)

    def fail(name: str) -> None:
        if name == "committed":
            raise CommitStateUnknownException("500")

    with at_each_step(fail):
        done = table.compact()
    assert (done.files_before, done.files_after) == (4, 1)
    assert strangers_rows(tmp_path) == rows_of(0, 40)


def test_a_compaction_that_fails_leaves_no_file(tmp_path: Path) -> None:
    table = filled(tmp_path, 4)
    files = set(tmp_path.rglob("*.parquet"))
    next(iter(sorted(files))).rename(tmp_path / "away")
    with pytest.raises(Exception, match="could not compact"):
        table.compact()
    assert set(tmp_path.rglob("*.parquet")) < files


def test_rows_that_others_deleted_stay_deleted_by_compaction(tmp_path: Path) -> None:
    table = filled(tmp_path, 4)
    strangers_table(tmp_path).delete("id < 15")
    table.compact()
    assert strangers_rows(tmp_path) == rows_of(15, 40)


def test_vacuum_removes_what_was_replaced_and_keeps_what_a_reader_may_need(tmp_path: Path) -> None:
    table = filled(tmp_path, 6)
    before = strangers_table(tmp_path).current_snapshot()
    assert before is not None
    table.compact()
    # The snapshot before the compaction was current a moment ago: whoever began then reads its files.
    assert table.vacuum(HOUR) == Vacuumed()
    assert strangers_table(tmp_path).snapshot_by_id(before.snapshot_id) is not None
    would = table.vacuum(0, dry_run=True)
    assert would.files > 6
    assert strangers_table(tmp_path).snapshot_by_id(before.snapshot_id) is not None
    assert table.vacuum(0) == would
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert strangers_rows(tmp_path) == rows_of(0, 60)
    assert staged(table, 60, 70).commit()
    assert strangers_rows(tmp_path) == rows_of(0, 70)


def test_vacuum_keeps_a_block_that_is_about_to_be_committed(tmp_path: Path) -> None:
    table = filled(tmp_path, 2)
    block = staged(table, 20, 30)
    table.vacuum(0)
    assert block.commit()
    assert strangers_rows(tmp_path) == rows_of(0, 30)


def test_vacuum_removes_files_of_attempts_that_were_never_committed_after_an_hour(tmp_path: Path) -> None:
    table = filled(tmp_path, 2)
    staged(table, 20, 30)
    assert table.vacuum(0, dry_run=True).files == 1  # the first block's manifest list, and no data
    table.vacuum(0)
    make_older(tmp_path, 1.5 * HOUR)
    assert table.vacuum(2 * HOUR).files == 0
    assert table.vacuum(HOUR).files >= 1
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert strangers_rows(tmp_path) == rows_of(0, 20)


def test_vacuum_keeps_what_is_kept_about_the_table_beside_its_files(tmp_path: Path) -> None:
    table = filled(tmp_path, 1)
    place = Path(table.location.removeprefix("file://"))
    ledger, stray = place / "_replays" / "plan.json", place / "data" / "stray.parquet"
    for file in (ledger, stray):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}")
        os.utime(file, (0, 0))
    assert table.vacuum(0).files >= 1
    assert (ledger.exists(), stray.exists()) == (True, False)


def test_vacuum_keeps_what_branches_and_tags_name(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    theirs = strangers_table(tmp_path)
    old = theirs.snapshots()[0].snapshot_id
    theirs.manage_snapshots().create_tag(old, "audit").commit()
    table.compact()
    table.vacuum(0)
    make_older(tmp_path, 2 * HOUR)
    table.vacuum(0)
    kept = strangers_table(tmp_path)
    assert kept.scan(snapshot_id=old).to_arrow().sort_by("id")["id"].to_pylist() == list(range(10))
    assert strangers_rows(tmp_path) == rows_of(0, 30)


@pytest.mark.parametrize("call", [lambda t: t.compact(0), lambda t: t.vacuum(-1), lambda t: t.vacuum(float("nan"))])
def test_numbers_that_cannot_be_right_are_refused(tmp_path: Path, call: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a number"):
        call(filled(tmp_path, 1))


@pytest.mark.parametrize("call", [lambda t: t.compact(), lambda t: t.vacuum(0)])
def test_where_there_is_no_table_that_is_said(tmp_path: Path, call: Any) -> None:
    with pytest.raises(InvalidInput, match="no table"):
        call(opened(tmp_path))


@pytest.mark.slow
def test_blocks_compaction_vacuum_and_readers_at_once(tmp_path: Path) -> None:
    """Every read sees a whole number of blocks, each row once, while files are replaced and removed under it."""
    opened(tmp_path)
    assert staged(opened(tmp_path), 0, 10).commit()
    over, errors, reads = threading.Event(), [], []

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                while not over.is_set():
                    work()
            except BaseException as error:
                errors.append(error)
                over.set()

        return threading.Thread(target=run)

    def read() -> None:
        found = strangers_table(tmp_path).scan().to_arrow().sort_by("id")["id"].to_pylist()
        assert found == list(range(len(found)))
        assert len(found) % 10 == 0
        reads.append(len(found))

    table = opened(tmp_path)
    # A reader here takes a second at most.
    threads = [guarded(lambda: opened(tmp_path).compact()), guarded(lambda: opened(tmp_path).vacuum(5)), guarded(read)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 8
    first = 10
    while time.monotonic() < until and not over.is_set():
        assert staged(table, first, first + 10).commit()
        first += 10
    over.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert reads
    assert strangers_rows(tmp_path) == rows_of(0, first)
    position = table.position(QUERY)
    assert position is not None
    assert position.end == first
