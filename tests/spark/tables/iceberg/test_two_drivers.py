"""Two drivers with the same events: one of them commits, wherever the other is."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.types import StringType

from penstock.errors import OutcomeUnknown, StorageError
from penstock.spark.tables.contract import Position
from penstock.spark.tables.iceberg import commits
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

MERGING: dict[str, Any] = {"merge_on": ["id"]}


def stepping(warehouse: Path, **options: Any) -> IcebergTable:
    return open_iceberg(NAME, catalog=stepping_catalog(warehouse), **options)


def on_step(number: int, action: Callable[[], object]) -> Callable[[str], None]:
    """Do something at one step, counted from 0, and nothing at others."""
    steps = iter(range(10**6))

    def hook(_step: str) -> None:
        if next(steps) == number:
            action()

    return hook


def steps_of_a_block(warehouse: Path, **options: Any) -> list[str]:
    """The steps from staging a block to the end of its commit, on a table that has one."""
    table = stepping(warehouse, **options)
    assert staged(table, 0, 10).commit()
    found: list[str] = []
    with at_each_step(found.append):
        assert staged(table, 10, 20).commit()
    return found


def test_the_steps_of_a_block_are_what_the_tests_below_stop_at(tmp_path: Path) -> None:
    steps = steps_of_a_block(tmp_path)
    assert steps == ["load", "data", "load", "manifest", "manifest list", "commit", "load", "metadata", "committed"]


@pytest.mark.parametrize("options", [{}, pytest.param(MERGING, marks=pytest.mark.slow)], ids=["append", "merge"])
@pytest.mark.parametrize(
    "end", [pytest.param(15, marks=pytest.mark.slow), 20, pytest.param(30, marks=pytest.mark.slow)]
)
def test_of_two_drivers_one_commits_at_whichever_step_the_other_is(
    tmp_path: Path, end: int, options: dict[str, Any]
) -> None:
    steps = steps_of_a_block(tmp_path / "steps", **options)
    for step in range(len(steps)):
        warehouse = tmp_path / str(step)
        slow, fast = stepping(warehouse, **options), stepping(warehouse, **options)
        assert staged(slow, 0, 10).commit()
        committed: list[bool] = []

        def commit_the_other(fast: IcebergTable = fast, committed: list[bool] = committed) -> None:
            committed.append(staged(fast, 10, end).commit())

        with at_each_step(on_step(step, commit_the_other)):
            committed.append(staged(slow, 10, 20).commit())
        # From that step on the slow driver's commit is done, and the fast one comes too late.
        assert sorted(committed) == [False, True], step
        position = fast.position(QUERY)
        assert position is not None
        assert position.end == (20 if step >= steps.index("committed") else end)
        assert strangers_rows(warehouse) == rows_of(0, position.end)


def test_pyicebergs_own_retries_would_commit_a_block_twice(tmp_path: Path) -> None:
    """The trap, so that it is known when it is gone; and the same steps with our commit."""
    table = opened(tmp_path)
    assert staged(table, 0, 3).commit()
    first, second = strangers_table(tmp_path), strangers_table(tmp_path)
    rows = first.scan().to_arrow()
    for handle in (first, second):  # the second is stale when it commits, and tries again by itself
        with handle.transaction() as transaction:
            transaction.append(rows)
    assert len(strangers_rows(tmp_path)) == 9

    ours = opened(tmp_path / "ours")
    blocks = [staged(ours, 0, 3), staged(opened(tmp_path / "ours"), 0, 3)]
    assert [block.commit() for block in blocks] == [True, False]
    assert strangers_rows(tmp_path / "ours") == rows_of(0, 3)


def test_a_lost_commit_is_not_sent_again_without_a_look(tmp_path: Path) -> None:
    """Fails if pyiceberg's retries are on: the second request would follow the first without a load by us."""
    slow, fast = stepping(tmp_path), stepping(tmp_path)
    assert staged(slow, 0, 10).commit()
    with strangers_table(tmp_path).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "10", "commit.retry.min-wait-ms": "1"})
    block = staged(slow, 10, 20)
    steps: list[str] = []

    def race(step: str) -> None:
        steps.append(step)
        if step == "commit" and steps.count("commit") == 1:
            assert staged(fast, 10, 20).commit()

    with at_each_step(race):
        assert not block.commit()
    assert steps.count("commit") == 1
    assert strangers_rows(tmp_path) == rows_of(0, 20)


def test_another_querys_commit_in_between_does_no_harm(tmp_path: Path) -> None:
    slow, fast = stepping(tmp_path), stepping(tmp_path)
    assert staged(slow, 0, 10).commit()
    block = staged(slow, 10, 20)
    other = staged(fast, 100, 110, query="8f1c.other")
    steps: list[str] = []

    def race(step: str) -> None:
        steps.append(step)
        if step == "commit" and steps.count("commit") == 1:
            assert other.commit()

    with at_each_step(race):
        assert block.commit()
    assert ids(strangers_rows(tmp_path)) == [*range(20), *range(100, 110)]
    # The manifests of the try that lost are gone.
    table = strangers_table(tmp_path)
    named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        named |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}
    there = {str(file) for file in tmp_path.rglob("*.avro")}
    assert there <= named


@pytest.mark.parametrize(
    "lost", [CommitStateUnknownException("500"), ConnectionError("reset"), CommitFailedException("409, after a resend")]
)
@pytest.mark.parametrize("options", [{}, MERGING], ids=["append", "merge"])
def test_a_commit_whose_answer_is_lost_is_found(tmp_path: Path, lost: Exception, options: dict[str, Any]) -> None:
    table = stepping(tmp_path, **options)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)

    def fail(step: str) -> None:
        if step == "committed":
            raise lost

    with at_each_step(fail):
        assert block.commit()
    block.discard()
    assert strangers_rows(tmp_path) == rows_of(0, 20)


@pytest.mark.parametrize("lost", [CommitStateUnknownException("500"), CommitFailedException("409, after a resend")])
def test_a_commit_whose_answer_is_lost_is_found_behind_later_blocks(tmp_path: Path, lost: Exception) -> None:
    table, other = stepping(tmp_path), stepping(tmp_path)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)

    def fail(step: str) -> None:
        if step == "committed":
            assert staged(other, 20, 30).commit()
            raise lost

    with at_each_step(fail):
        assert block.commit()
    assert strangers_rows(tmp_path) == rows_of(0, 30)


@pytest.mark.parametrize("lost", [CommitStateUnknownException("503"), ConnectionError("refused")])
def test_a_request_that_did_not_arrive_is_sent_again(tmp_path: Path, lost: Exception) -> None:
    table = stepping(tmp_path)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)
    tries: list[str] = []

    def fail(step: str) -> None:
        if step == "commit":
            tries.append(step)
            if len(tries) < 3:
                raise lost

    with at_each_step(fail):
        assert block.commit()
    assert strangers_rows(tmp_path) == rows_of(0, 20)


def test_a_request_that_may_arrive_late_keeps_its_files(tmp_path: Path) -> None:
    """Its files stay when the table has changed: the request might still be carried out."""
    table = stepping(tmp_path)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)
    files = set(tmp_path.rglob("*.parquet"))

    def fail(step: str) -> None:
        if step == "commit":
            with strangers_table(tmp_path).update_schema() as update:
                update.add_column("extra", StringType())
            raise ConnectionError("reset")

    with at_each_step(fail):
        assert not block.commit()
    block.discard()
    assert set(tmp_path.rglob("*.parquet")) == files


def test_a_commit_that_cannot_be_looked_up_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_PATIENCE_SECONDS", 0.0)
    table = stepping(tmp_path)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)

    def fail(step: str) -> None:
        if step == "committed":
            raise ConnectionError("reset")

    with at_each_step(fail), pytest.raises(OutcomeUnknown, match="look at its position"):
        block.commit()
    block.discard()
    assert table.position(QUERY) == Position(end=20, first=10, last="ingest/20.arrow", rows=10)
    assert strangers_rows(tmp_path) == rows_of(0, 20)


def test_a_catalog_that_is_away_before_the_commit_leaves_the_block_staged(tmp_path: Path) -> None:
    table = stepping(tmp_path)
    assert staged(table, 0, 10).commit()
    block = staged(table, 10, 20)

    def fail(step: str) -> None:
        if step == "load":
            raise ConnectionError("refused")

    with at_each_step(fail), pytest.raises(StorageError, match="could not load"):
        block.commit()
    assert block.commit()
    assert strangers_rows(tmp_path) == rows_of(0, 20)


def test_drivers_that_create_the_table_at_once_get_one(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)
    outcomes: list[bool] = []

    def drive(number: int) -> None:
        barrier.wait()
        outcomes.append(staged(opened(tmp_path), 0, 10, query=f"query.{number}").commit())

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4
    assert Counter(ids(strangers_rows(tmp_path))) == Counter(list(range(10)) * 4)


def test_drivers_that_add_the_same_column_at_once_both_go_on(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    wider = StructType([StructField("id", LongType()), StructField("extra", LongType())])
    slow, fast = stepping(tmp_path), stepping(tmp_path)
    assert staged(slow, 0, 10).commit()
    steps: list[str] = []

    def race(step: str) -> None:
        steps.append(step)
        if steps == ["load"]:
            assert staged(fast, 10, 20, [{"id": 10, "extra": 1}], columns=wider).commit()

    with at_each_step(race):
        block = staged(slow, 20, 30, [{"id": 20, "extra": 2}], columns=wider)
    assert block.commit()
    assert [row["extra"] for row in strangers_rows(tmp_path)] == [None] * 10 + [1, 2]


def test_many_drivers_on_one_query_commit_each_event_once(tmp_path: Path) -> None:
    opened(tmp_path)
    won: Counter[int] = Counter()

    def drive(number: int) -> None:
        table = opened(tmp_path)
        while (position := table.position(QUERY)) is None or position.end < 100:
            first = 0 if position is None else position.end
            won[number] += staged(table, first, first + 3 + number).commit()

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    position = opened(tmp_path).position(QUERY)
    assert position is not None
    assert strangers_rows(tmp_path) == rows_of(0, position.end)
    assert sum(won.values()) == len(list(strangers_table(tmp_path).snapshots()))
