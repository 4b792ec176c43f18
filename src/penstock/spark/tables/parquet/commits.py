"""What a block's commit says: JSON, inside the block's directory or, in an object store, the commit itself.

A block's name is its query and its *slot*: how many blocks of that query were committed before it. So a commit is a
compare-and-set: of two drivers that have seen the same last block, one gets the next slot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.types import StructType

from penstock.errors import CorruptData
from penstock.spark.tables.contract import BlockId, Position

BLOCK = "block"
"""The column that plain readers of a table see beside those that were written: which block a row is of."""

_VERSION = 1
_COMPACTED = re.compile(r"compacted\.(\d{12,})")  # no block of a query has such a name: it ends with "-" and a slot
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
    """A committed block. The nonce is one attempt's own: by it an attempt knows its commit from another's.

    `positions` are those of the queries whose blocks were compacted into this one, each with its last slot.
    """

    version: int
    block: str
    end: str
    nonce: str
    at: str
    schema: dict[str, Any]
    partition_by: tuple[str, ...]
    rows: int | None
    files: tuple[BlockFile, ...]
    first: int | None = None
    positions: Mapping[str, KeptPosition] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        block: BlockId,
        nonce: str,
        schema: StructType,
        partition_by: Sequence[str],
        files: Iterable[BlockFile] = (),
    ) -> BlockCommit:
        """The commit of a block, of files that are written."""
        return cls(
            version=_VERSION,
            block=name,
            end=block.end_text,
            nonce=nonce,
            at=datetime.now(UTC).isoformat(),
            schema=schema.jsonValue(),
            partition_by=tuple(partition_by),
            rows=None,
            files=(),
            first=block.first,
        ).with_files(files)

    @classmethod
    def of_compacted(
        cls,
        generation: int,
        nonce: str,
        schema: StructType,
        partition_by: Sequence[str],
        files: Iterable[BlockFile],
        positions: Mapping[str, KeptPosition],
    ) -> BlockCommit:
        """The commit of a compaction: it stands for all blocks up to the slots in `positions`."""
        return cls(
            version=_VERSION,
            block=compacted_name(generation),
            end=json.dumps({"sequence": 0}),  # it is of no query, and `positions` has those that it stands for
            nonce=nonce,
            at=datetime.now(UTC).isoformat(),
            schema=schema.jsonValue(),
            partition_by=tuple(partition_by),
            rows=None,
            files=(),
            positions=positions,
        ).with_files(files)

    def with_files(self, files: Iterable[BlockFile]) -> BlockCommit:
        """The same with these files."""
        files = tuple(files)
        counts = [file.rows for file in files if file.rows is not None]
        return replace(self, files=files, rows=sum(counts) if len(counts) == len(files) else None)

    @classmethod
    def decode(cls, data: bytes, place: str) -> BlockCommit:
        """Read a commit. Raises `CorruptData` naming the place."""
        try:
            commit = msgspec.json.decode(data, type=cls)
            commit.columns()
            commit.position()
            for kept in commit.positions.values():
                kept.position()
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

    def position(self) -> Position:
        """How far the block's query is with it. Raises `ValueError` where the commit does not say it."""
        return _position(self.end, self.first, self.rows)

    def kept(self, slot: int) -> KeptPosition:
        """What a compaction keeps of a block that is the last of its query."""
        return KeptPosition(slot, self.end, self.first, self.rows, self.nonce)

    def check_is(self, block: BlockId, place: str) -> None:
        """Raise `CorruptData` if this is not the block that is being written under that name."""
        if self.end != block.end_text:
            raise CorruptData(
                f"the block {self.block} is in {place} already and ends at {self.end}, but the block to be written "
                f"under that name ends at {block.end_text}: the checkpoint has lost what it had planned. Nothing of "
                f"the block is acked: remove {place} and run again"
            )


@dataclass(frozen=True, slots=True)
class KeptPosition:
    """The last block of a query that was compacted: its slot, and what its commit said; the nonce is its attempt's."""

    slot: int
    end: str
    first: int | None = None
    rows: int | None = None
    nonce: str = ""

    def position(self) -> Position:
        """How far the query was with that block."""
        return _position(self.end, self.first, self.rows)


def compacted_name(generation: int) -> str:
    """The name of what a compaction writes; generations count from 1.

    >>> compacted_name(3)
    'compacted.000000000003'
    """
    return f"compacted.{generation:012d}"


def generation_of(name: str) -> int | None:
    """The generation in the name of a compaction; None for that of a block.

    >>> generation_of("compacted.000000000003"), generation_of("8f1c.default-000000000017")
    (3, None)
    """
    found = _COMPACTED.fullmatch(name)
    return int(found[1]) if found else None


def slot_name(query: str, slot: int) -> str:
    """The name of a query's block.

    >>> slot_name("8f1c.default", 17)
    '8f1c.default-000000000017'
    """
    return f"{query}-{slot:012d}"


def slot_of(name: str, query: str) -> int | None:
    """The slot in the name of a block; None if it is another query's.

    >>> slot_of("8f1c.default-000000000017", "8f1c.default"), slot_of("8f1c.default-000000000017", "8f1c")
    (17, None)
    """
    before, _, number = name.rpartition("-")
    return int(number) if before == query and number.isdecimal() else None


def query_and_slot(name: str) -> tuple[str, int] | None:
    """The query and the slot in the name of a block; None for a name that has none.

    >>> query_and_slot("8f1c.default-000000000017")
    ('8f1c.default', 17)
    """
    query, _, number = name.rpartition("-")
    return (query, int(number)) if query and number.isdecimal() else None


def _position(end: str, first: int | None, rows: int | None) -> Position:
    fields = json.loads(end)
    return Position(int(fields["sequence"]), first, fields.get("last"), rows)


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
