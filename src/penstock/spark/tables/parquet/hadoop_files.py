"""HDFS, or any other file system that Spark's Hadoop knows, under a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.errors import InvalidInput, StorageError
from penstock.spark.sessions import is_connect
from penstock.spark.tables.parquet.commits import BlockFile
from penstock.storage import redact


class HadoopFiles:
    """A file system through Hadoop's `FileContext`, whose rename fails in one step if the target is there.

    Raises `InvalidInput` for a scheme that Hadoop does not know, and with Spark Connect, whose Hadoop is the server's.
    """

    spark_scheme = ""  # a path has its scheme already
    tasks_write = False  # Hadoop is in the JVM, and tasks are in Python

    def __init__(self, spark: SparkSession, url: str) -> None:
        if is_connect(spark):
            raise InvalidInput(
                f"{redact(url)} is reached by Spark's Hadoop only, and not through Spark Connect: use a path, s3://, "
                "gs:// or az://, or a classic session"
            )
        jvm: Any = spark._jvm
        self._hadoop = jvm.org.apache.hadoop.fs
        self._to_bytes = jvm.org.apache.commons.io.IOUtils.toByteArray
        # A directory that is there may not be replaced. Java takes a list of options as an array.
        rename = self._hadoop.Options.Rename
        self._as_new = spark.sparkContext._gateway.new_array(rename, 1)  # type: ignore[union-attr]
        self._as_new[0] = rename.NONE
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        try:
            at = self._hadoop.Path(url)
            self._system: Any = at.getFileSystem(configuration)
            self._context: Any = self._hadoop.FileContext.getFileContext(at.toUri(), configuration)
        except Py4JJavaError as error:
            raise InvalidInput(f"{redact(url)} is no place for a table: {_text(error)}") from error

    def read(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        with _failing_to(f"read {path}"):
            try:
                stream = self._system.open(self._path(path))
            except Py4JJavaError as error:
                if _is_missing(error):
                    return None
                raise
            try:
                return bytes(self._to_bytes(stream))
            finally:
                stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, in a new directory if need be, durably."""
        with _failing_to(f"write {path}"):
            stream = self._system.create(self._path(path), False)
            try:
                stream.write(bytearray(data))
                stream.hsync()
            finally:
                stream.close()

    def names(self, path: str) -> list[str]:
        """What is in a directory: nothing, if there is none."""
        with _failing_to(f"list {path}"):
            try:
                return [status.getPath().getName() for status in self._system.listStatus(self._path(path))]
            except Py4JJavaError as error:
                if _is_missing(error):
                    return []
                raise

    def finish(self, path: str) -> list[BlockFile]:
        """Describe the data files. Spark writes no others here."""
        found = []
        with _failing_to(f"look through {path}"):
            top = self._system.makeQualified(self._path(path)).toUri()
            files = self._system.listFiles(self._path(path), True)
            while files.hasNext():
                status = files.next()
                if status.getPath().getName().endswith(".parquet"):
                    relative = top.relativize(status.getPath().toUri()).getPath()
                    found.append(BlockFile(relative, status.getLen()))
        return found

    def move(self, path: str, to: str) -> None:
        """Rename a directory, in one step, into one that is made if need be. Fails if there is one with that name."""
        with _failing_to(f"rename {path} to {to}"):
            self._system.mkdirs(self._path(to).getParent())
            self._context.rename(self._path(path), self._path(to), self._as_new)

    def remove(self, path: str) -> None:
        """Remove a file, or a directory and what is in it; nothing happens if it is not there."""
        with _failing_to(f"remove {path}"):
            self._system.delete(self._path(path), True)

    def sync(self, path: str, but: Sequence[str] = ()) -> None:
        """Nothing to do: what is closed is as durable as the file system's replicas make it."""

    def committing(self, _staging: str) -> AbstractContextManager[object]:
        """Nothing to do: no compaction exchanges a directory here."""
        return nullcontext()

    def rows(self, path: str) -> Iterator[pa.RecordBatch]:
        """Not without Spark."""
        raise InvalidInput(f"{path} can be read with Spark only")

    def settle(self, path: str) -> None:
        """Nothing to do: a name is durable as soon as it is there."""

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)


@contextmanager
def _failing_to(what: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise StorageError(redact(f"could not {what}: {_text(error)}")) from error


def _is_missing(error: Py4JJavaError) -> bool:
    return bool(error.java_exception.getClass().getName() == "java.io.FileNotFoundException")


def _text(error: Py4JJavaError) -> str:
    return redact(str(error.java_exception.toString()))
