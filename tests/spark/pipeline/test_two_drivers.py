"""Two drivers of one pipeline, at every step and with every border of blocks: each event is in a table once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig
from penstock.errors import Fenced, SinkFailed
from penstock.spark.tables.parquet.table import StagedFiles
from tests.spark.pipeline.in_process import Setting, Sleeper, Step, error_of, killed_at

BUFFERS = {
    "rows and letters": [[1, -2], [3, -4], [-5, 6], [7, -8], [9]],
    "letters in one batch": [[1], [2], [3, -4], [5], [6]],
    "letters at the end": [[1], [2], [3], [4], [5, -6]],
    "rows in one batch": [[-1], [-2], [-3, 4], [-5], [-6]],
    "no letters": [[1], [2], [3], [4], [5]],
    "no rows": [[-1], [-2], [-3], [-4], [-5]],
    "turn by turn": [[1], [-2], [3], [-4], [5]],
}
QUICK = ("rows and letters",)
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in BUFFERS]
BATCHES = 5
BORDERS = [(2, 2), (2, 1), (2, 3), (3, 2), (2, 5), (5, 2), (5, 1)]


pytestmark = pytest.mark.usefixtures("nothing_is_synced")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def assert_fenced(error: BaseException | None, *, is_through: bool) -> None:
    """A driver that has nothing left to do need not find out that it is fenced."""
    assert isinstance(error, Fenced) or (is_through and error is None), error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", Step)
def test_a_driver_that_is_killed_at_a_step_is_followed_by_one_that_finishes_wherever_its_blocks_end(
    step: Step, kind: str, tmp_path: Path
) -> None:
    for number, (borders, first) in enumerate((borders, first) for borders in BORDERS[:5] for first in (0, 2)):
        setting = Setting(tmp_path / str(number))
        numbers = setting.put(*BUFFERS[kind])
        error_of(setting.driver(borders[0], killed_at(step, first)).run)
        # Where a block has no letters or no rows, there is no such step, and the driver was not killed.
        assert error_of(setting.driver(borders[1]).run) is None
        setting.assert_each_once(numbers)
        # What a killed driver has staged is swept by the next commit to that table.
        assert setting.staged() == [] or kind in {"no rows", "rows in one batch", "letters in one batch"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", Step)
def test_a_driver_that_sleeps_at_a_step_while_another_finishes_is_fenced_and_leaves_no_trace(
    step: Step, kind: str, tmp_path: Path
) -> None:
    slept = 0
    for number, borders in enumerate(BORDERS):
        setting = Setting(tmp_path / str(number))
        numbers = setting.put(*BUFFERS[kind])
        sleeper = Sleeper(setting, borders[0], step)
        if sleeper.sleeps():
            slept += 1
            assert error_of(setting.driver(borders[1]).run) is None
            assert_fenced(sleeper.wake(), is_through=step is Step.ACKED and borders[0] == BATCHES)
            assert setting.staged() == []
        else:
            assert sleeper.wake() is None
        setting.assert_each_once(numbers)
    has_no_such_step = (kind == "no letters" and "letters" in step) or (kind == "no rows" and "rows" in step)
    assert slept == 0 if has_no_such_step else slept > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["rows and letters", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in list(BUFFERS)[1:])]
)
@pytest.mark.parametrize("second_step", Step)
@pytest.mark.parametrize("first_step", Step)
def test_a_driver_that_wakes_while_a_newer_one_is_in_a_block_does_one_block_at_most_and_the_newer_one_goes_on(
    first_step: Step, second_step: Step, kind: str, tmp_path: Path
) -> None:
    for number, borders in enumerate(BORDERS):
        setting = Setting(tmp_path / str(number))
        numbers = setting.put(*BUFFERS[kind])
        older = Sleeper(setting, borders[0], first_step)
        if not older.sleeps():
            assert older.wake() is None
            setting.assert_each_once(numbers)
            continue
        newer = Sleeper(setting, borders[1], second_step)
        newer.sleeps()
        blocks = len(older.driver.blocks)
        assert_fenced(older.wake(), is_through=first_step is Step.ACKED and borders[0] == BATCHES)
        assert len(older.driver.blocks) <= blocks + 1
        assert newer.wake() is None
        setting.assert_each_once(numbers)
        assert setting.staged() == []


def test_a_driver_asleep_between_its_letters_and_its_rows_leaves_the_block_to_be_done_exactly(setting: Setting) -> None:
    numbers = setting.put([1, -2], [3], [4], [5], [6])
    sleeper = Sleeper(setting, 3, Step.LETTERS_COMMITTED)
    assert sleeper.sleeps()
    other = setting.driver(2)
    other.run()
    assert [(block.first, block.end, block.rows, block.dead_letters) for block in other.blocks] == [
        (0, 3, 3, 1),
        (3, 5, 2, 0),
    ]
    assert isinstance(sleeper.wake(), Fenced)
    setting.assert_each_once(numbers)


def test_rows_that_a_killed_driver_has_committed_are_acked_and_not_read_again(setting: Setting) -> None:
    numbers = setting.put([1], [2], [3], [4])
    error_of(setting.driver(3, killed_at(Step.ROWS_COMMITTED, 0)).run)
    assert setting.backlog.sequences() == [0, 1, 2, 3]
    other = setting.driver(4)
    other.run()
    assert [(block.first, block.end) for block in other.blocks] == [(3, 4)]
    setting.assert_each_once(numbers)


def test_a_block_that_is_lost_again_and_again_ends_the_run_and_is_not_acked(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.put([1], [2])
    tries: list[StagedFiles] = []

    def lose(staged: StagedFiles) -> bool:
        tries.append(staged)
        staged.discard()
        return False

    monkeypatch.setattr(StagedFiles, "commit", lose)
    error = error_of(setting.driver(2).run)
    assert isinstance(error, SinkFailed)
    assert "the block at sequence 0 was written 20 times and was not committed" in str(error)
    assert len(tries) == 20
    assert setting.backlog.sequences() == [0, 1]
    assert (setting.found().total(), setting.staged()) == (0, [])


def test_groups_of_one_buffer_have_positions_of_their_own_in_one_table(setting: Setting) -> None:
    with Consumer(setting.backlog.store, ConsumerConfig(gc=False, group="second")):
        pass  # it begins here, at the first sequence
    numbers = setting.put([1, -2], [3])
    for group in ("default", "second"):
        setting.driver(1, group=group).run()
    setting.assert_each_once(numbers * 2)
