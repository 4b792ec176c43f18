"""`Pipeline.maintain`: compaction, and removal of what it replaced, every so often beside the running pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import get_logger
from penstock.errors import PenstockError
from penstock.spark.tables.contract import Table

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Maintain:
    """How often a table is compacted, into files of which size; and how old what it replaced is when it is removed."""

    every: float
    target_bytes: int
    vacuum_older_than: float | None


class Maintenance:
    """A thread that maintains a table until it is stopped. What fails is logged, and tried again the next time."""

    def __init__(self, step: Maintain, open_table: Callable[[], Table]) -> None:
        self._step = step
        self._open_table = open_table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-maintain", daemon=True)

    def __enter__(self) -> Maintenance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._step.every):
            self.run_once()

    def run_once(self) -> None:
        """Compact the table, and vacuum it if that is wanted."""
        step = self._step
        try:
            table = self._open_table()
            if not table.exists():
                return  # the first block has not come yet
            done = table.compact(step.target_bytes)
            if done.files_before:
                _log.info("%s: %d files are now %d", table, done.files_before, done.files_after)
            if step.vacuum_older_than is not None:
                removed = table.vacuum(step.vacuum_older_than)
                if removed.files:
                    _log.info("%s: %d files were removed, %d bytes", table, removed.files, removed.bytes)
        except PenstockError as error:
            _log.warning("the table was not maintained this time: %s", error)
        except Exception:  # noqa: BLE001  of a library; the pipeline goes on
            _log.exception("the table was not maintained this time")
