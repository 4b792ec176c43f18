"""Two drivers, drivers that are killed, and answers that are lost, at each step of a commit: lost 0, twice 0."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import Conflict, OutcomeUnknown, StorageError
from penstock.spark.tables.contract import Position
from penstock.spark.tables.delta.table import DeltaTable, open_delta
from tests.support.delta_blocks import (
    COLUMNS,
    QUERY,
    block,
    commit,
    data_files,
    ids,
    listed_files,
    position,
    run,
    stage,
)
from tests.support.processes import Parent, Start

STEPS = ("created", "looked", "committed", "settled")
MERGE: dict[str, Any] = {"merge_on": ["id"]}


def once(name: str, do: Callable[[], object]) -> Callable[[str], None]:
    """A step that does something, the first time that it has this name."""
    left = [name]

    def step(at: str) -> None:
        if at in left:
            left.remove(at)
            do()

    return step


def stop_at(parent: Parent, place: str, at: str, options: dict[str, Any]) -> None:
    """A driver that waits at a step, to be killed there."""

    def step(name: str) -> None:
        if name == at:
            parent.tell(name)
            parent.wait()

    run(place, [5, 9], step=step, **options)


@pytest.mark.parametrize("options", [{}, MERGE], ids=["append", "merge"])
@pytest.mark.parametrize("at", STEPS)
def test_a_driver_that_is_killed_at_a_step_is_followed_by_one_that_goes_on(
    tmp_path: Path, start: Start, at: str, options: dict[str, Any]
) -> None:
    child = start(stop_at, str(tmp_path), at, options)
    assert child.hear() == at
    child.kill()
    expected = 5 if at in ("committed", "settled") else 0
    assert position(open_delta(str(tmp_path), **options)) == expected
    assert ids(tmp_path) == list(range(expected))
    run(tmp_path, [3, 9], **options)  # cut otherwise
    assert ids(tmp_path) == list(range(9))


@pytest.mark.parametrize("options", [{}, MERGE], ids=["append", "merge"])
@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("end", [3, 5, 9])
def test_of_two_drivers_that_meet_at_a_step_one_has_the_block(
    tmp_path: Path, at: str, end: int, options: dict[str, Any]
) -> None:
    other = open_delta(str(tmp_path), **options)
    outcomes: list[bool] = []
    table = open_delta(str(tmp_path), **options)
    table.step = once(at, lambda: outcomes.append(commit(other, block(0, end))))
    outcomes.append(commit(table, block(0, 5)))
    assert sorted(outcomes) == [False, True]
    won = 5 if at in ("committed", "settled") else end
    assert ids(tmp_path) == list(range(won))
    assert table.position(QUERY) == Position(won, 0, f"ingest/{won:06d}.arrow", won)
    if not options:
        assert data_files(tmp_path) == listed_files(tmp_path)


@pytest.mark.parametrize("options", [{}, MERGE], ids=["append", "merge"])
def test_drivers_at_once_in_threads_lose_nothing_and_have_nothing_twice(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    barrier = threading.Barrier(4)
    failed: list[BaseException] = []

    def drive(seed: int) -> None:
        chance = random.Random(seed)
        ends = sorted({*(chance.randrange(1, 60) for _ in range(8)), 60})
        barrier.wait()
        try:
            run(tmp_path, ends, **options)
        except BaseException as error:
            failed.append(error)

    drivers = [threading.Thread(target=drive, args=(seed,)) for seed in range(4)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert failed == []
    assert ids(tmp_path) == list(range(60))
    created = [one for one in deltalake.DeltaTable(str(tmp_path)).history() if one["operation"] == "CREATE TABLE"]
    assert len(created) == 1


@pytest.mark.parametrize("options", [{}, MERGE], ids=["append", "merge"])
@pytest.mark.parametrize("error", [StorageError("the answer is lost"), Conflict("as its own retry makes it")], ids=repr)
def test_a_commit_whose_answer_is_lost_is_recognised(
    tmp_path: Path, error: StorageError, options: dict[str, Any]
) -> None:
    def lose() -> None:
        raise error

    table = open_delta(str(tmp_path), **options)
    table.step = once("committed", lose)
    staged = stage(table, block(0, 5))
    assert staged.commit()
    staged.discard()
    assert ids(tmp_path) == list(range(5))
    assert position(table) == 5


def test_a_lost_answer_is_recognised_after_others_have_compacted(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 5))

    def lose() -> None:
        deltalake.DeltaTable(str(tmp_path)).optimize.compact()
        raise StorageError("the answer is lost")

    table.step = once("committed", lose)
    assert commit(table, block(5, 9))
    assert ids(tmp_path) == list(range(9))


def test_a_commit_that_fails_before_it_happens_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_delta(str(tmp_path))
    failures = iter([True, True, False])
    append = table.log.append

    def fail(*args: Any) -> None:
        if next(failures):
            raise StorageError("the store does not answer")
        append(*args)

    monkeypatch.setattr(table.log, "append", fail)
    assert commit(table, block(0, 5))
    assert ids(tmp_path) == list(range(5))


def test_a_commit_that_never_succeeds_has_an_unknown_outcome_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_delta(str(tmp_path))

    def fail(*_: Any) -> None:
        raise StorageError("the store does not answer")

    monkeypatch.setattr(table.log, "append", fail)
    staged = stage(table, block(0, 5))
    with pytest.raises(OutcomeUnknown, match=r"the block 8f1c.default-000000000000 may be committed in file://"):
        staged.commit()
    staged.discard()
    assert len(data_files(tmp_path)) == 2


def test_a_commit_on_a_table_that_others_append_to_is_the_next_version(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))

    def append() -> None:
        rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()
        deltalake.write_deltalake(str(tmp_path), rows, mode="append")

    at_first = once("looked", append)
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        at_first(name)

    table.step = step
    assert commit(table, block(1, 3))
    assert ids(tmp_path) == [0, 0, 1, 2]
    # Delta-rs must not move the commit to a later version by itself: what was checked is of the version before.
    assert steps == ["looked", "looked", "committed", "settled"]


def test_a_block_is_staged_again_if_the_table_has_changed(tmp_path: Path) -> None:
    table = open_delta(str(tmp_path))
    commit(table, block(0, 1))
    staged = stage(table, block(1, 3))
    wider = StructType([*COLUMNS, StructField("more", LongType())])
    assert commit(open_delta(str(tmp_path)), block(0, 1, "other.default"), [{"id": 7, "more": 1}], wider)
    assert not staged.commit()
    assert position(table) == 1
    assert commit(table, block(1, 3))
    assert ids(tmp_path) == [0, 1, 2, 7]
    assert data_files(tmp_path) == listed_files(tmp_path)


def test_drivers_that_add_columns_at_once_add_each_once(tmp_path: Path) -> None:
    def wider(name: str) -> StructType:
        return StructType([*COLUMNS, StructField("both", LongType()), StructField(name, LongType())])

    commit(open_delta(str(tmp_path)), block(0, 1))
    barrier = threading.Barrier(3)

    def drive(name: str) -> None:
        table = open_delta(str(tmp_path))
        barrier.wait()
        of = block(0, 1, f"{name}.default")
        while not table.has(of):
            commit(table, of, [{"id": 7, "both": 1, name: 1}], wider(name))

    drivers = [threading.Thread(target=drive, args=(name,)) for name in ("one", "two", "three")]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert ids(tmp_path) == [0, 7, 7, 7]
    names = open_delta(str(tmp_path)).info().columns
    assert sorted(name for name, _ in names) == ["at", "both", "event", "id", "one", "three", "two"]


def test_a_position_is_durable_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver was killed between its commit and the sync of it: whoever sees the commit syncs it."""
    import os

    table = open_delta(str(tmp_path))

    def stop() -> None:
        raise KeyboardInterrupt

    table.step = once("committed", stop)
    with pytest.raises(KeyboardInterrupt):
        commit(table, block(0, 5))
    synced: set[str] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    assert position(open_delta(str(tmp_path))) == 5
    data = {str(tmp_path / name) for name in listed_files(tmp_path)}
    assert {
        str(tmp_path),
        str(tmp_path / "_delta_log"),
        str(tmp_path / "_delta_log" / f"{1:020d}.json"),
        *data,
    } <= synced


def test_a_file_that_a_power_cut_has_cut_is_an_error_and_no_position(tmp_path: Path) -> None:
    from penstock.errors import CorruptData

    commit(open_delta(str(tmp_path)), block(0, 5))
    name = min(listed_files(tmp_path))
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CorruptData, match="has 0 bytes, and the table's log says"):
        open_delta(str(tmp_path)).position(QUERY)
    with pytest.raises(CorruptData, match="has 0 bytes"):
        open_delta(str(tmp_path)).has(block(0, 5))


def test_a_log_entry_that_a_power_cut_has_emptied_is_no_commit(tmp_path: Path) -> None:
    commit(open_delta(str(tmp_path)), block(0, 5))
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_bytes(b"")
    table: DeltaTable = open_delta(str(tmp_path))
    assert table.position(QUERY) is None
    assert commit(table, block(0, 5))
    assert ids(tmp_path) == list(range(5))
