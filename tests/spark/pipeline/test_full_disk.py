"""A disk that is full while a block is staged or committed: nothing is acked, and the next run goes on with room."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import EngineError, StorageError
from tests.spark.kills.kinds import TABLES
from tests.spark.pipeline.in_process import Setting, error_of

ENOUGH = 3  # blocks with room, one after the other
_PAGE = 4096  # what a file takes on a tmpfs, at least


class SmallDisk:
    """A small file system with the tables on it; the buffer is elsewhere."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._filler = point / "filler"

    def leave_free(self, pages: int) -> None:
        """Fill the disk but for so many pages."""
        self.free_space()
        with self._filler.open("wb", buffering=0) as filler:
            with suppress(OSError):
                while filler.write(bytes(_PAGE)) == _PAGE:
                    pass
            filler.truncate(max(filler.tell() - pages * _PAGE, 0))

    def free_space(self) -> None:
        self._filler.unlink(missing_ok=True)


class OnSmallDisk(Setting):
    """A setting whose tables are on a small disk."""

    disk: SmallDisk

    @property
    def rows(self) -> Path:
        return self.disk.point / "tables" / "rows"

    @property
    def letters(self) -> Path:
        return self.disk.point / "tables" / "letters"


@pytest.mark.slow
@pytest.mark.parametrize("kind", TABLES)
def test_a_disk_that_is_full_at_any_moment_of_a_block_acks_nothing_and_leaves_each_event_once(
    kind: str, tmp_path: Path, mount: Callable[[str], Path]
) -> None:
    setting = OnSmallDisk(tmp_path, kind)
    setting.disk = SmallDisk(mount("size=4m"))
    setting.rows.parent.mkdir()
    numbers = setting.put([1, -2])
    setting.driver().run()
    succeeded = failed = 0
    for pages in range(100):
        numbers += setting.put([10 * pages + 13, -10 * pages - 14])
        setting.disk.leave_free(pages)
        stopped = error_of(setting.driver().run)
        setting.disk.free_space()
        if stopped is not None:
            assert_is_of_a_full_disk(stopped, setting)
            assert setting.backlog.sequences() == [pages + 1], "a block that failed was acked"
            succeeded, failed = 0, failed + 1
            setting.driver().run()
        setting.assert_each_once(numbers)
        succeeded += stopped is None
        if succeeded == ENOUGH:
            break
    assert succeeded == ENOUGH
    assert failed > 2
    print(f"\n{kind}: {failed} blocks met a full disk, at as many places; {len(numbers)} events, each once")
    del stopped
    gc.collect()  # a database's connection that failed holds the disk until then


def assert_is_of_a_full_disk(error: BaseException, setting: OnSmallDisk) -> None:
    """It says that, and of which file or table."""
    assert isinstance(error, StorageError | EngineError)
    assert "No space left on device" in str(error) or "disk is full" in str(error)
    assert str(setting.disk.point) in str(error) or "lake.kills." in str(error)
