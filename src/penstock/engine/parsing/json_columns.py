"""Reads lines of JSON into columns with Arrow's reader.

Only checked objects may come here: the reader crashes the process on a line that is `null` or nested deep, skips
empty lines, and takes two objects in one line for two rows. The rows are counted all the same.

Text stays text. Arrow takes a column of strings for timestamps as soon as all of them look like it, and then the type
of a column would depend on what is in the block. It does not when it is told the types; so they are learned from
the first rows, and told. That also lets it read pieces of the block in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

_HEAD = 64 << 10  # bytes of lines to learn the types from
_HEAD_ROWS = 256  # and no more rows than these: all fields of all of them could differ
_CELLS = 4_000_000  # rows times fields that the reader may find out by itself
_PIECE = 1 << 20  # bytes that one thread reads at a time
_MOST = (1 << 31) - (1 << 20)  # bytes that the reader takes as one piece


class TooWide(Exception):
    """Nobody knows how many fields these rows have, and it may be more than the reader has memory for."""


def read_lines(lines: pa.Buffer, rows: int, limit: int, *, one_line_each: bool) -> pa.RecordBatch | None:
    """The columns of `rows` objects; None where the reader does not take them, or cannot say one type for a field.

    `one_line_each` says that there is a newline behind each object and none inside. Raises `TooWide` where the rows may
    have more than `limit` fields: the reader has a value for every field in every row, and asks no one.
    """
    if lines.size > _MOST:
        return None
    batch = None
    is_small = rows * lines.size < _CELLS or rows * _colons(lines) < _CELLS  # there is no field without a colon
    if one_line_each and (lines.size > 2 * _HEAD or not is_small):
        learned = _learn(lines)
        if learned is not None and count_fields(learned) <= limit:
            batch = read_lines_as(learned, lines, rows, one_line_each=True)
    if batch is not None:
        return batch
    if not is_small:
        raise TooWide
    # The whole block is one piece here: types are settled within a piece.
    table = _read(lines, lines.size, None)
    if table is None:
        return None
    if count_fields(table.schema) > limit:
        raise TooWide
    schema = _with_text(table.schema)
    if schema != table.schema or not _is_sound(table):
        table = _read(lines, lines.size, schema)
    return None if table is None else _batch(table, rows)


def read_lines_as(schema: pa.Schema, lines: pa.Buffer, rows: int, *, one_line_each: bool) -> pa.RecordBatch | None:
    """The columns of objects whose fields and types are known; None where one of them has others."""
    if lines.size > _MOST:
        return None
    table = _read(lines, _PIECE if one_line_each else lines.size, schema)
    return None if table is None else _batch(table, rows)


def _colons(lines: pa.Buffer) -> int:
    return lines.to_pybytes().count(b":")


def _learn(lines: pa.Buffer) -> pa.Schema | None:
    head = lines.slice(0, min(_HEAD, lines.size))
    end = sum(len(line) + 1 for line in head.to_pybytes().split(b"\n", _HEAD_ROWS)[:-1])
    table = _read(head.slice(0, end), end, None) if end else None
    return None if table is None else _with_text(table.schema)


def _read(lines: pa.Buffer, piece: int, schema: pa.Schema | None) -> pa.Table | None:
    import pyarrow.json as pj

    parse = pj.ParseOptions(
        explicit_schema=cast("pa.Schema", schema), unexpected_field_behavior="infer" if schema is None else "error"
    )
    # One byte more than the text: a piece that ends with it is not taken for a cut one.
    read = pj.ReadOptions(use_threads=True, block_size=piece + 1)
    try:
        return pj.read_json(cast("Any", pa.BufferReader(lines)), read_options=read, parse_options=parse)
    except MemoryError:
        raise  # Arrow's is one of those below too, and says nothing about the lines
    except pa.ArrowException:
        return None


def _batch(table: pa.Table, rows: int) -> pa.RecordBatch | None:
    if table.num_rows != rows or not _is_sound(table):
        return None
    if not table.num_columns:
        return batch_without_columns(rows)
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else None


def count_fields(fields: Iterable[pa.Field[Any]]) -> int:
    """How many fields there are, with those inside others."""
    inner = ([field.type.field(at) for at in range(field.type.num_fields)] for field in fields)
    return sum(1 + count_fields(each) for each in inner)


def batch_without_columns(rows: int) -> pa.RecordBatch:
    """So many rows of nothing, which arrays alone cannot say.

    >>> batch_without_columns(3).num_rows
    3
    """
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(cast("pa.StructArray", nothing))


def _is_sound(table: pa.Table) -> bool:
    # The reader loses nulls at the start of the first list of a field whose type it does not know yet, and then the
    # list reaches behind its items (apache/arrow#51305). Told the type, it does not, but for a list of nothing else.
    nested = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    try:
        table.select(nested).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _with_text(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_text_field(field) for field in schema])


def _text_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _text_type(field.type))


def _text_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_text_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_text_field(kind.field(at)) for at in range(kind.num_fields)])
    return kind
