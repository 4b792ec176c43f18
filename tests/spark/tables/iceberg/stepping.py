"""A catalog and files that call a hook at each step of theirs, so that a test can do anything there: kill, race, fail.

They are given to a table by pyiceberg's own properties `py-catalog-impl` and `py-io-impl`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import CommitTableResponse, Table

from penstock.spark.tables.iceberg.durable_files import DurableFile, DurableFileIO

Hook = Callable[[str], None]


def _nothing(_step: str) -> None:
    pass


_hook: Hook = _nothing


@contextmanager
def at_each_step(hook: Hook) -> Iterator[None]:
    """Call the hook at each step of what is done meanwhile; steps of what the hook itself does do not count."""
    global _hook
    _hook = hook
    try:
        yield
    finally:
        _hook = _nothing


def _step(name: str) -> None:
    global _hook
    hook, _hook = _hook, _nothing
    try:
        hook(name)
    finally:
        _hook = hook


def stepping_catalog(warehouse: Path) -> dict[str, str]:
    """The properties of an embedded catalog that steps."""
    warehouse.mkdir(parents=True, exist_ok=True)
    return {
        "py-catalog-impl": f"{__name__}.SteppingCatalog",
        "py-io-impl": f"{__name__}.SteppingFileIO",
        "uri": f"sqlite:///{warehouse}/catalog.db",
        "warehouse": str(warehouse),
    }


class SteppingCatalog(SqlCatalog):
    def load_table(self, identifier: Any) -> Table:
        table = super().load_table(identifier)
        _step("load")
        return table

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        _step("commit")
        answer = super().commit_table(table, requirements, updates)
        _step("committed")
        return answer


class SteppingFileIO(DurableFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SteppingFile(fs=self.fs_by_scheme(scheme, netloc), location=location, path=path)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        super().delete(location)
        _step("delete")


class _SteppingFile(DurableFile):
    def create(self, overwrite: bool = False) -> Any:
        stream = super().create(overwrite)
        close, kind = stream.close, _kind(self.location)

        def stepping_close() -> None:
            was_closed = stream.closed  # type: ignore[attr-defined]
            close()
            if not was_closed:
                _step(kind)

        stream.close = stepping_close  # type: ignore[method-assign]
        return stream


def _kind(location: str) -> str:
    name = os.path.basename(location)
    if name.endswith(".metadata.json"):
        return "metadata"
    if name.startswith("snap-"):
        return "manifest list"
    return "manifest" if name.endswith(".avro") else "data"
