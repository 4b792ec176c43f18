"""What a block's commit says: JSON, inside the block's directory or, in an object store, the commit itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.types import StructType

from penstock.errors import CorruptData
from penstock.spark.tables.contract import BlockId

BLOCK = "block"
"""The column that plain readers of a table see beside those that were written: which block a row is of."""

_VERSION = 1
_SPARKS_CLASSES = ("pyspark.ml.", "pyspark.mllib.")


@dataclass(frozen=True, slots=True)
class BlockFile:
    """A Parquet file of a block. `values` are those of the partition columns as text, where the commit keeps them."""

    path: str
    size: int
    rows: int | None = None
    values: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockCommit:
    """A committed block. The nonce is one attempt's own: by it an attempt knows its commit from another's."""

    version: int
    block: str
    end: str
    nonce: str
    at: str
    schema: dict[str, Any]
    partition_by: tuple[str, ...]
    rows: int | None
    files: tuple[BlockFile, ...]

    @classmethod
    def of(
        cls,
        block: BlockId,
        nonce: str,
        schema: StructType,
        partition_by: Sequence[str],
        files: Iterable[BlockFile],
    ) -> BlockCommit:
        """The commit of a block whose files are written."""
        files = tuple(files)
        counts = [file.rows for file in files if file.rows is not None]
        return cls(
            version=_VERSION,
            block=block.name,
            end=block.end,
            nonce=nonce,
            at=datetime.now(UTC).isoformat(),
            schema=schema.jsonValue(),
            partition_by=tuple(partition_by),
            rows=sum(counts) if len(counts) == len(files) else None,
            files=files,
        )

    @classmethod
    def decode(cls, data: bytes, place: str) -> BlockCommit:
        """Read a commit. Raises `CorruptData` naming the place."""
        try:
            commit = msgspec.json.decode(data, type=cls)
            commit.columns()
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptData(f"{place} is not the commit of a block: {error}") from error
        if commit.version != _VERSION:
            raise CorruptData(f"{place} is a commit of version {commit.version}, and this Penstock reads {_VERSION}")
        return commit

    def encode(self) -> bytes:
        """The commit as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    def columns(self) -> StructType:
        """The columns that were written, the partition columns among them. Raises `ValueError` where there are none."""
        _refuse_classes(self.schema)
        return StructType.fromJson(self.schema)

    def check_is(self, block: BlockId, place: str) -> None:
        """Raise `CorruptData` if this is not the block that is being written under that name."""
        if self.end != block.end:
            raise CorruptData(
                f"the block {block.name} is in {place} already and ends at {self.end}, but the block to be written "
                f"under that name ends at {block.end}: the checkpoint has lost what it had planned. Nothing of the "
                f"block is acked: remove {place} and run again"
            )


def _refuse_classes(schema: object) -> None:
    """Raise `ValueError` where a schema names a class that is not Spark's: to read it would import what it names."""
    if isinstance(schema, list):
        for one in schema:
            _refuse_classes(one)
    if isinstance(schema, dict):
        name = schema.get("pyClass")
        if schema.get("type") == "udt" and not (isinstance(name, str) and name.startswith(_SPARKS_CLASSES)):
            raise ValueError(f"a column is of the class {name!r}, and no class is loaded because a table names it")
        for one in schema.values():
            _refuse_classes(one)
