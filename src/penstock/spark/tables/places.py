"""Which kind of table lies at a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from pyspark.sql import SparkSession

from penstock.errors import InvalidInput
from penstock.spark.tables.file_table import Files
from penstock.spark.tables.hadoop_files import HadoopFiles
from penstock.spark.tables.local_files import LocalFiles
from penstock.storage import ObjectStore, local_path, open_store, redact

_OBJECT_STORES = ("s3", "gs", "az")
# What Hadoop calls object stores, and what we do. None of them renames a directory in one step.
_OTHER_NAMES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
    "azure": "az",
}


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A directory on a file system."""

    files: Files
    root: str
    url: str


def find_place(spark: SparkSession, url: str, options: Mapping[str, str] | None) -> FilePlace | ObjectStore:
    """Find out where a table lies. Raises `InvalidInput` for a place where none can be."""
    url = _as_text(url)
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _OTHER_NAMES:
        raise InvalidInput(f"write {_OTHER_NAMES[scheme]}:// for {scheme}://: Penstock reaches object stores by itself")
    if separator and scheme == "memory":
        raise InvalidInput("memory:// lives in one process, and a table is written by many: give a path or another URL")
    if separator and scheme in _OBJECT_STORES:
        return open_store(url, **(options or {}))
    if options:
        raise InvalidInput(f"options ({', '.join(sorted(options))}) go with an object store, not with a file system")
    if separator and scheme != "file":
        return FilePlace(HadoopFiles(spark, url.rstrip("/")), url.rstrip("/"), redact(url.rstrip("/")))
    return _local(local_path(url))


def _as_text(url: object) -> str:
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str) or not text:
        raise InvalidInput(f"a table's place is a path or a URL, not {text!r}")
    return text


def _local(path: str) -> FilePlace:
    # The real one: what is beside a link may be on another disk, where no rename leads from.
    root = os.path.realpath(path)
    if os.path.ismount(root):
        raise InvalidInput(
            f"{path} is where a disk is mounted, and a table needs a place beside it: use a directory below"
        )
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidInput(f"{path} is a file, and a table is a directory")
    return FilePlace(LocalFiles(), root, "file://" + quote(path, errors="surrogateescape"))
