"""Tables that were restored to an older version while the pipeline was stopped: no event is lost unsaid, or twice."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest

from penstock.errors import CorruptData
from tests.spark.kills.kinds import DELTA, ICEBERG, load_iceberg
from tests.spark.pipeline.in_process import Killed, Setting, Step, error_of, killed_at

pytestmark = pytest.mark.usefixtures("nothing_is_synced")


@pytest.fixture(params=[DELTA, ICEBERG])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(tmp_path, request.param)


def version_of(setting: Setting, place: Path) -> int:
    """The version of a Delta table, or the snapshot of an Iceberg table."""
    if setting.kind == DELTA:
        return deltalake.DeltaTable(place).version()
    return int(load_iceberg(place).current_snapshot().snapshot_id)


def restore(setting: Setting, place: Path, version: int) -> None:
    if setting.kind == DELTA:
        deltalake.DeltaTable(place).restore(version)
    else:
        load_iceberg(place).manage_snapshots().set_current_snapshot(version).commit()


def set_property(setting: Setting, place: Path, name: str, value: str) -> None:
    if setting.kind == DELTA:
        deltalake.DeltaTable(place).alter.set_table_properties({name: value}, raise_if_not_exists=False)
        return
    with load_iceberg(place).transaction() as transaction:
        transaction.set_properties({name: value})


@pytest.mark.parametrize("batches", [[[3, 4]], [[-3, -4]], [[3, -4]]], ids=["rows", "letters", "both"])
def test_events_that_a_restore_took_and_that_are_not_acked_come_again(
    setting: Setting, batches: list[list[int]]
) -> None:
    numbers = setting.put([1, -2])
    setting.driver().run()
    before = {place: version_of(setting, place) for place in (setting.rows, setting.letters)}
    numbers += setting.put(*batches)
    step = Step.ROWS_COMMITTED if batches[0][0] > 0 else Step.LETTERS_COMMITTED
    assert isinstance(error_of(setting.driver(reach=killed_at(step, 1)).run), Killed)
    for place, version in before.items():
        if version_of(setting, place) != version:
            restore(setting, place, version)

    setting.driver().run()

    setting.assert_each_once(numbers)
    numbers += setting.put([5], [-6])
    setting.driver().run()
    setting.assert_each_once(numbers)


def test_a_restore_that_took_acked_events_stops_the_run_until_it_is_accepted(setting: Setting) -> None:
    numbers = setting.put([1], [2])
    setting.driver().run()
    version = version_of(setting, setting.rows)
    setting.put([3], [4])
    setting.driver().run()
    restore(setting, setting.rows, version)
    setting.put([5])

    stopped = error_of(setting.driver().run)

    assert isinstance(stopped, CorruptData)
    assert "the table was restored to an older version: it had the events up to sequence 3" in str(stopped)
    assert "those from 2 on are gone from it" in str(stopped)
    assert setting.backlog.sequences() == [4]
    name = str(stopped).split("set its property '")[1].partition("'")[0]
    set_property(setting, setting.rows, name, "3")
    assert isinstance(error_of(setting.driver().run), CorruptData), "that is another restore's"
    set_property(setting, setting.rows, name, "4")
    setting.driver().run()
    setting.assert_each_once([*numbers, 5])
    setting.put([6])
    setting.driver().run()
    setting.assert_each_once([*numbers, 5, 6])


def test_a_restore_that_is_taken_back_changes_nothing(setting: Setting) -> None:
    numbers = setting.put([1])
    setting.driver().run()
    older = version_of(setting, setting.rows)
    numbers += setting.put([2], [3])
    setting.driver().run()
    newer = version_of(setting, setting.rows)
    restore(setting, setting.rows, older)
    restore(setting, setting.rows, newer)
    numbers += setting.put([4])

    setting.driver().run()

    setting.assert_each_once(numbers)


def test_blocks_without_rows_before_a_restore_are_not_missed(setting: Setting) -> None:
    numbers = setting.put([1], [-2], [-3])
    setting.driver().run()
    version = version_of(setting, setting.rows)
    numbers += setting.put([4])
    assert isinstance(error_of(setting.driver(reach=killed_at(Step.ROWS_COMMITTED, 3)).run), Killed)
    restore(setting, setting.rows, version)

    setting.driver().run()

    setting.assert_each_once(numbers)
