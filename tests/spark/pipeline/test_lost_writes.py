"""A buffer that has lost its last writes gives the same sequences to other events: the run stops, and acks nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptData
from tests.spark.pipeline.in_process import Setting, Step, error_of, killed_at
from tests.support.manifests import KINDS
from tests.support.restored_buffers import copied

MANIFESTS = KINDS


pytestmark = pytest.mark.usefixtures("nothing_is_synced")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


@pytest.mark.parametrize(
    ("before", "lost", "what"),
    [
        ([[1], [2]], [[3], [4]], "the table"),
        ([[1, -2]], [[3, -4]], "the table"),
        ([[-1], [-2]], [[-3], [-4]], "the dead letters' table"),
    ],
    ids=["rows", "rows and letters", "letters"],
)
def test_a_position_that_is_not_of_the_buffer_as_it_is_now_stops_the_run(
    before: list[list[int]], lost: list[list[int]], what: str, setting: Setting
) -> None:
    numbers = setting.put(*before)
    restore = copied(setting.root / "events")
    numbers += setting.put(*lost)
    setting.driver(9).run()
    setting.assert_each_once(numbers)
    there = setting.found()
    restore()
    queued = setting.backlog.sequences()

    end = len(before) + len(lost)
    past_the_end = error_of(setting.driver(9).run)
    assert isinstance(past_the_end, CorruptData)
    assert f"{what} is at sequence {end}, and the next sequence of " in str(past_the_end)
    assert f"is {len(before)}: the buffer has lost its last writes. Nothing is read or acked" in str(past_the_end)
    assert (setting.found(), setting.backlog.sequences()) == (there, queued)

    setting.put(*([100 + number, -200 - number] for number in range(len(lost) + 1)))
    queued = setting.backlog.sequences()
    other_events = error_of(setting.driver(9).run)
    assert isinstance(other_events, CorruptData)
    assert f"{what} has the events up to sequence {end - 1}, of which the last were in ingest/" in str(other_events)
    assert "other events have their sequences. Nothing is read or acked" in str(other_events)
    assert (setting.found(), setting.backlog.sequences()) == (there, queued)


def test_letters_that_were_committed_before_the_crash_are_checked_too(setting: Setting) -> None:
    setting.put([1, -2])
    restore = copied(setting.root / "events")
    setting.put([3, -4])
    error_of(setting.driver(9, killed_at(Step.LETTERS_COMMITTED, 0)).run)
    restore()
    setting.put([5, -6])
    error = error_of(setting.driver(9).run)
    assert isinstance(error, CorruptData)
    assert "the dead letters' table has the events up to sequence 1" in str(error)
    assert setting.backlog.sequences() == [0, 1]


def test_a_buffer_that_lost_only_acks_goes_on_where_the_table_is(setting: Setting) -> None:
    numbers = setting.put([1, -2], [3])
    restore = copied(setting.root / "events")
    setting.driver(9).run()
    restore()
    numbers += setting.put([5])
    driver = setting.driver(9)
    driver.run()
    assert [(block.first, block.end) for block in driver.blocks] == [(2, 3)]
    setting.assert_each_once(numbers)
