"""What a pipeline has planned, for a sink that keeps no position: the same block must come again after a crash.

A plan is an object beside the checkpoint, named after the query and the block's first sequence, and put if it is
absent: of two drivers that plan the same block, the first decides where it ends. It keeps the object of the block's
last batch: where a buffer has lost its last writes, the same sequences are other events.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from typing import Any, Protocol

from penstock.errors import AlreadyExists, CorruptData, InvalidInput, NotFound, StorageError
from penstock.spark.tables.contract import Position
from penstock.spark.tables.parquet.hadoop_files import HadoopFiles
from penstock.storage import local_path, open_store, sync_upwards

_FOLDER = "penstock"
_OBJECT_STORES = ("s3", "gs", "az")
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


class SmallFiles(Protocol):
    """Small files below a place: each is written once, whole, and durably."""

    def read(self, path: str, /) -> bytes | None:
        """A file's content; None where there is none."""
        ...

    def write_new(self, path: str, data: bytes, /) -> bool:
        """Write a file that is not there; False if it is."""
        ...

    def names(self, folder: str, /) -> list[str]:
        """The names of the files in a folder."""
        ...

    def remove(self, path: str, /) -> None:
        """Remove a file, if it is there."""
        ...


def open_files(spark: Any, checkpoint: str) -> SmallFiles:
    """The files of a checkpoint, on a disk, an object store, or a file system of Hadoop's."""
    scheme, separator, rest = checkpoint.partition("://")
    if separator and _OTHER_NAMES.get(scheme, scheme) in _OBJECT_STORES:
        return _StoredFiles(open_store(f"{_OTHER_NAMES.get(scheme, scheme)}://{rest}"))
    if separator and scheme != "file":
        return _FilesOfHadoop(HadoopFiles(spark, checkpoint), checkpoint.rstrip("/"))
    return _LocalFiles(local_path(checkpoint))


class BlockPlans:
    """The plans of one query."""

    def __init__(self, files: SmallFiles, query: str) -> None:
        self._files = files
        self._folder = f"{_FOLDER}/blocks/{query}"

    def read(self, first: int) -> Position | None:
        """Where the block that begins at a sequence was planned to end, and with which object; None if none was."""
        data = self._files.read(f"{self._folder}/{_name(first)}")
        if data is None:
            return None
        try:
            plan = json.loads(data)
            return Position(int(plan["end"]), first, plan.get("last"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptData(f"the plan {self._folder}/{_name(first)} beside the checkpoint is broken") from error

    def write(self, first: int, end: int, last: str) -> int:
        """Write down a plan, and return where the block ends: there, or where another driver has planned it."""
        if self._files.write_new(f"{self._folder}/{_name(first)}", json.dumps({"end": end, "last": last}).encode()):
            return end
        planned = self.read(first)
        return end if planned is None else planned.end

    def forget_before(self, first: int) -> None:
        """Remove the plans of blocks that are acked."""
        for name in self._files.names(self._folder):
            if name.partition(".")[0].isdecimal() and int(name.partition(".")[0]) < first:
                self._files.remove(f"{self._folder}/{name}")


def _name(first: int) -> str:
    return f"{first:020d}.json"


class _StoredFiles:
    def __init__(self, store: Any) -> None:
        self._store = store

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(self._store.get(path).data)
        except NotFound:
            return None

    def write_new(self, path: str, data: bytes) -> bool:
        try:
            self._store.put_if_absent(path, data)
        except AlreadyExists:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        return [found.path.rpartition("/")[2] for found in self._store.list_objects(folder)]

    def remove(self, path: str) -> None:
        for result in self._store.delete([path]):
            if result.error:
                raise result.error


class _LocalFiles:
    """On a disk that may be a network's: so no store of ours, which wants more of it than these few files."""

    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        try:
            with open(f"{self._root}/{path}", "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._failed("read", path, error) from error

    def write_new(self, path: str, data: bytes) -> bool:
        at = f"{self._root}/{path}"
        part = f"{at}.{uuid.uuid4().hex}.part"  # of this call alone: drivers on two hosts may have one process id
        is_new = True
        try:
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(part, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, at)  # fails if it is there, and never shows half of it
            except FileExistsError:
                is_new = False
            finally:
                os.unlink(part)
            sync_upwards(os.path.dirname(at))  # another's too: it may have been killed before it did that
        except OSError as error:
            raise self._failed("write", path, error) from error
        return is_new

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(f"{self._root}/{folder}")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._failed("list", folder, error) from error

    def remove(self, path: str) -> None:
        try:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._root}/{path}")
        except OSError as error:
            raise self._failed("remove", path, error) from error

    def _failed(self, what: str, path: str, error: OSError) -> StorageError:
        return StorageError(f"could not {what} {self._root}/{path}: {error.strerror or error}")


class _FilesOfHadoop:
    def __init__(self, files: HadoopFiles, root: str) -> None:
        self._files = files
        self._root = root

    def read(self, path: str) -> bytes | None:
        return self._files.read(f"{self._root}/{path}")

    def write_new(self, path: str, data: bytes) -> bool:
        at = f"{self._root}/{path}"
        part = f"{at}.{uuid.uuid4().hex}.part"
        self._files.write(part, data)
        try:
            self._files.move(part, at)  # fails if it is there, and never shows half of it
        except StorageError:
            self._files.remove(part)
            if self.read(path) is None:
                raise
            return False
        return True

    def names(self, folder: str) -> list[str]:
        return self._files.names(f"{self._root}/{folder}")

    def remove(self, path: str) -> None:
        self._files.remove(f"{self._root}/{path}")


def need_checkpoint(checkpoint: str | None, what: str) -> str:
    """The checkpoint of a pipeline. Raises `InvalidInput` where it has none, and needs one for something."""
    if checkpoint is None:
        raise InvalidInput(f"{what} needs a place to write down what is planned: Pipeline(..., checkpoint='...')")
    return checkpoint
