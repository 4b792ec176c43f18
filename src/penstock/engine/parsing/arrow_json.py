"""Many JSON payloads at once into columns, with Arrow's reader; or not at all.

What comes out is what the other ways make of the same payloads, only sooner. So nothing may get to the reader that it
takes and they do not: it reads `NaN` and `Inf`, does not look at UTF-8 and depth, and crashes the process on a line
that is `null`. A payload that begins with `{` and ends with `}` cannot reach into the next one, for no JSON has a `}`
and then a `{`; so as many rows as payloads means one object each. A key that has a column, and is there twice, the
reader refuses itself.

Not read here: decimals, since Arrow loses the digits of one that is too long; binary and maps, which its reader does
not know; times without a zone and dates, but at the top; and what may not be null, but at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.column_arrays import in_range
from penstock.engine.parsing.json_payloads import are_utf8, json_lines, longest, opening_brackets
from penstock.engine.parsing.parse_errors import MAX_DEPTH
from penstock.engine.parsing.row_values import Fields, inner_fields

_BYTES_PER_THREAD = 1 << 20  # that one thread reads at a time
_MAX_BLOCK_BYTES = 1 << 30  # the reader counts them in 32 bits
_MINUS_ZERO = re.compile(rb"-0(?![0-9.eE])")  # an integer that the reader makes -0.0, and the other ways 0.0
_UTC = pa.timestamp("us", tz="UTC")


def can_read(fields: Fields) -> bool:
    """Whether columns like these can be read here."""
    return bool(fields) and all(_can_be_cast(field.type) or _is_direct(field.type) for field in fields)


def read_piece(values: pa.Array[Any], fields: Fields, *, ignore_others: bool) -> list[pa.Array[Any]] | None:
    """The columns of all payloads; None where one of them does not fit, or only might not.

    A member that has no column is ignored, or does not fit.
    """
    import pyarrow.json as pj

    lines = json_lines(values) if len(values) and _are_braced(values) else None
    if lines is None or not _is_harmless(lines.to_pybytes(), values):
        return None
    schema = pa.schema([pa.field(field.name, _read_as(field.type)) for field in fields])
    block = min(max(_BYTES_PER_THREAD, 2 * longest(values)), _MAX_BLOCK_BYTES)
    try:
        table = pj.read_json(
            cast("Any", pa.BufferReader(lines)),
            read_options=pj.ReadOptions(use_threads=True, block_size=block),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if ignore_others else "error"
            ),
        )
        if table.num_rows != len(values):
            return None
        columns = [_checked(table.column(at).combine_chunks(), field) for at, field in enumerate(fields)]
    except MemoryError:
        raise  # Arrow's is one of those below too, and says nothing about the lines
    except pa.ArrowException:
        return None
    leaves = chain.from_iterable(map(_leaves, columns))
    return None if any(map(_has_negative_zero, leaves)) and _MINUS_ZERO.search(lines.to_pybytes()) else columns


def _is_direct(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        inner = inner_fields(kind)
        return bool(inner) and all(field.nullable and _is_direct(field.type) for field in inner)
    return pa.types.is_integer(kind) or kind in (pa.float64(), pa.bool_(), pa.string(), pa.null(), _UTC)


def _can_be_cast(kind: pa.DataType) -> bool:
    return kind in (pa.float32(), pa.date32(), pa.timestamp("us"))


def _read_as(kind: pa.DataType) -> pa.DataType:
    # The reader takes numbers for dates, and zones for times without one. Floats are rounded twice, as elsewhere.
    if not _can_be_cast(kind):
        return kind
    return pa.float64() if pa.types.is_floating(kind) else pa.string()


def _are_braced(values: pa.Array[Any]) -> bool:
    import pyarrow.compute as pc

    text = cast("Any", values)
    return are_utf8(values) and bool(
        pc.all(pc.starts_with(text, "{")).as_py() and pc.all(pc.ends_with(text, "}")).as_py()
    )


def _is_harmless(text: bytes, values: pa.Array[Any]) -> bool:
    # One letter is found many times quicker than three, and most blocks have none of these.
    if (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text):
        return False
    if text.count(b"\n") != len(values) - 1:
        return False
    if longest(values) <= 2 * MAX_DEPTH or opening_brackets(text) < len(values) + MAX_DEPTH:
        return True
    import pyarrow.compute as pc

    brackets: Any = pc.add(pc.count_substring(cast("Any", values), "{"), pc.count_substring(cast("Any", values), "["))
    return bool(pc.max(brackets).as_py() <= MAX_DEPTH)


def _checked(column: Any, field: pa.Field[Any]) -> pa.Array[Any]:
    """The column with its own type. Raises `ArrowInvalid` where a value may not be in it."""
    whole: pa.Array[Any] = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if whole.type != field.type:
        whole = whole.cast(field.type)
    if pa.types.is_nested(field.type):
        whole.validate(full=True)  # the reader loses nulls at the start of a list (apache/arrow#51305)
    if whole.null_count and not field.nullable:
        raise pa.ArrowInvalid("a null where none may be")
    for leaf in _leaves(whole):
        if pa.types.is_temporal(leaf.type):
            in_range(leaf)
    return whole


def _has_negative_zero(leaf: pa.Array[Any]) -> bool:
    import pyarrow.compute as pc

    if not pa.types.is_floating(leaf.type):
        return False
    bits = leaf.view(pa.int32() if leaf.type == pa.float32() else pa.int64())
    return bool(pc.min(bits).as_py() == -1 << (bits.type.bit_width - 1))


def _leaves(column: Any) -> Iterable[pa.Array[Any]]:
    if pa.types.is_struct(column.type):
        for inner in column.flatten():
            yield from _leaves(inner)
    elif pa.types.is_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column
