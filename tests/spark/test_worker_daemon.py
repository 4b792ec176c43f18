"""The daemon of Spark's Python workers: what it imports, and from where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from penstock.spark.worker_daemon import without_archives

_SITE = os.path.dirname(os.path.dirname(pyspark.__file__))
_ARCHIVES = sorted(map(str, Path(_SITE, "pyspark", "python", "lib").glob("*.zip")))


def preloaded(show: str) -> str:
    """What an expression gives in a process that has preloaded, with the path that Spark gives its workers."""
    path = os.pathsep.join([*_ARCHIVES, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    code = f"import os, sys; from penstock.spark.worker_daemon import preload; preload(); print({show})"
    return subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, text=True)


def test_pyspark_is_imported_from_where_it_is_installed() -> None:
    assert len(_ARCHIVES) == 2
    found = preloaded("sys.modules['pyspark'].__file__, sys.modules['py4j'].__file__, 'pyarrow' in sys.modules")
    assert ".zip" not in found
    assert "True" in found


def test_the_daemon_has_no_thread_but_one_of_jemalloc_when_it_forks() -> None:
    names = "{open(f'/proc/self/task/{one}/comm').read().strip() for one in os.listdir('/proc/self/task')}"
    threads = preloaded(f"*sorted({names} - {{open('/proc/self/comm').read().strip()}})").split()
    assert threads in ([], ["jemalloc_bg_thd"])


def test_an_archive_stays_where_its_pyspark_is_not_installed(tmp_path: Path) -> None:
    archive = str(tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip")
    paths = [archive, "/opt/users.zip", str(tmp_path), *sys.path]
    assert without_archives(paths) == paths
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    assert without_archives(paths) == paths[1:]


def test_an_archive_stays_where_py4j_is_in_archives_only() -> None:
    assert without_archives([*_ARCHIVES, _SITE]) != [*_ARCHIVES, _SITE]
    assert without_archives([*_ARCHIVES]) == _ARCHIVES
