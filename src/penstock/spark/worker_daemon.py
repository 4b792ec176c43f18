"""The process that Spark's Python workers are forked from, with what they need imported once.

Spark starts it as `python -m penstock.spark.worker_daemon`, where `spark.python.daemon.module` names it. Without it
every worker imports Arrow and Penstock by itself, with its first task.

Spark puts archives of PySpark and Py4J in front of the path of its workers. Python keeps no bytecode of what it imports
from an archive, so every daemon would compile PySpark again, which takes longer than all other imports together. Where
that PySpark is installed as well, it is imported from there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder

_MODULES = (
    "pyspark.worker",  # which the daemon of Spark 4.3 imports after it has forked
    "penstock.spark.pipeline.tasks",
    "penstock.spark.tables.parquet.task_files",
)
_ARCHIVES = os.path.join("pyspark", "python", "lib")


def preload() -> None:
    """Import what the workers need.

    None of it starts a thread, which a fork would leave behind, but for that of Arrow's jemalloc, which handles forks.
    """
    sys.path[:] = without_archives(sys.path)
    for module in _MODULES:
        importlib.import_module(module)


def without_archives(paths: Iterable[str]) -> list[str]:
    """Leave out the archives of a PySpark that is installed on the same path: an archive's own folder is part of it."""
    given = list(paths)
    archives = {path for path in given if path.endswith(".zip") and _is_installed(path, given)}
    rest = [path for path in given if path not in archives]
    return rest if PathFinder.find_spec("py4j", rest) else given


def _is_installed(archive: str, paths: list[str]) -> bool:
    site, separator, _ = os.path.dirname(archive).rpartition(os.sep + _ARCHIVES)
    return bool(separator) and site in paths and os.path.isfile(os.path.join(site, "pyspark", "__init__.py"))


if __name__ == "__main__":
    preload()
    from pyspark import daemon

    daemon.manager()
