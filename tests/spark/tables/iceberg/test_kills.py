"""A driver that is killed after any step of a block, and what the next one finds."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.tables.iceberg.iceberg_table import IcebergTable
from penstock.spark.tables.iceberg.table import open_iceberg
from tests.spark.tables.iceberg.blocks import COLUMNS, NAME, QUERY, Row, rows_of, staged, strangers_rows
from tests.spark.tables.iceberg.stepping import at_each_step, stepping_catalog
from tests.support.processes import Child, Parent, Start

MERGING: dict[str, Any] = {"merge_on": ["id"], "delete_when": "name = 'gone'"}


def stepping(warehouse: Path, **options: Any) -> IcebergTable:
    return open_iceberg(NAME, catalog=stepping_catalog(warehouse), **options)


def killed_after(number: int) -> Any:
    """A hook that kills this process at a step, counted from 0."""
    steps = iter(range(10**6))

    def hook(_step: str) -> None:
        if next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def was_killed(child: Child) -> bool:
    """Wait for a process to end, and say how it did."""
    try:
        child.answer()
    except (EOFError, ConnectionError):
        return True
    return False


def do_one_block(_parent: Parent, warehouse: Path, number: int, options: dict[str, Any]) -> None:
    """A driver that is killed after so many steps of the block from 10 to 20."""
    table = stepping(warehouse, **options)
    with at_each_step(killed_after(number)):
        assert staged(table, 10, 20, tasks=2).commit()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, pytest.param(MERGING, marks=pytest.mark.slow)], ids=["append", "merge"])
def test_a_driver_killed_after_any_step_leaves_each_event_once(
    tmp_path: Path, start: Start, options: dict[str, Any]
) -> None:
    for step in range(30):
        warehouse = tmp_path / str(step)
        table = stepping(warehouse, **options)
        assert staged(table, 0, 10).commit()
        child = start(do_one_block, warehouse, step, options)
        killed = was_killed(child)
        position = table.position(QUERY)
        assert position is not None
        # Whatever the position says is there, and nothing else.
        assert strangers_rows(warehouse) == rows_of(0, position.end), step
        while (position := table.position(QUERY)) is None or position.end < 30:
            assert position is not None
            assert staged(table, position.end, position.end + 10).commit()
        assert strangers_rows(warehouse) == rows_of(0, 30), step
        if not killed:
            assert step > 8
            return
    pytest.fail("the block did not come to its end")


def changes_of(number: int) -> list[Row]:
    """The changes of event `number` on: keys that are set, and removed."""
    dice = random.Random(number)
    name = "gone" if dice.random() < 0.3 else f"value {number}"
    return [{"id": dice.randrange(40), "name": name}]


def apply_changes(_parent: Parent, warehouse: Path, last: int, kill_at: int) -> None:
    """A driver that merges changes in blocks of some size, until it is killed."""
    table = stepping(warehouse, **MERGING)
    dice = random.Random(kill_at)
    with at_each_step(killed_after(kill_at)):
        while (position := table.position(QUERY)) is None or position.end < last:
            first = 0 if position is None else position.end
            end = min(last, first + dice.randrange(1, 60))
            rows = [row for number in range(first, end) for row in changes_of(number)]
            staged(table, first, end, rows, columns=COLUMNS, tasks=dice.randrange(1, 4)).commit()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_a_stream_of_changes_with_kills_in_between_equals_a_dictionary(tmp_path: Path, start: Start, seed: int) -> None:
    last = 600
    expected: dict[int, str] = {}
    for number in range(last):
        for row in changes_of(number):
            if row["name"] == "gone":
                expected.pop(row["id"], None)
            else:
                expected[row["id"]] = row["name"]
    dice = random.Random(seed)
    for _ in range(40):
        child = start(apply_changes, tmp_path, last, dice.randrange(20, 250))
        if not was_killed(child):
            break
    found = [(row["id"], row["name"]) for row in strangers_rows(tmp_path)]
    assert found == sorted(expected.items())
