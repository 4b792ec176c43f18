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
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.column_arrays import in_range
from penstock.engine.parsing.json_payloads import are_utf8, longest, opening_brackets
from penstock.engine.parsing.payload_format import MAX_DEPTH, Fields, inner_fields
from penstock.records import bytes_of

_BYTES_PER_THREAD = 1 << 20  # that one thread reads at a time
_MAX_BLOCK_BYTES = 1 << 30  # the reader counts them in 32 bits
_MAX_JOINED_BYTES = 1 << 30  # the values and what is put between them must stay under 2 GiB
_MINUS_ZERO = re.compile(rb"-0(?![0-9.eE])")  # an integer that the reader makes -0.0, and the other ways 0.0
# The reader takes numbers for dates, and zones for times without one. Floats are rounded twice, as elsewhere.
_READ_AS: dict[Any, pa.DataType] = {
    pa.float32(): pa.float64(),
    pa.date32(): pa.string(),
    pa.timestamp("us"): pa.string(),
}
_PLAIN = frozenset({pa.float64(), pa.bool_(), pa.string(), pa.null()})


class ArrowReader:
    """Reads JSON payloads into the columns of some fields. A member without a column is ignored, or does not fit."""

    def __init__(self, fields: Fields, *, ignore_others: bool) -> None:
        import pyarrow.json as pj

        self._fields = fields
        schema = pa.schema([pa.field(field.name, _READ_AS.get(field.type, field.type)) for field in fields])
        self._to_check = {at for at, field in enumerate(fields) if not field.nullable or not _is_plain(field.type)}
        types = [str(field.type) for field in fields]
        self._with_floats = [at for at, kind in enumerate(types) if "float" in kind or "double" in kind]
        self._options = pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if ignore_others else "error"
        )

    def read(self, values: pa.Array[Any]) -> list[pa.Array[Any]] | None:
        """The columns of all payloads; None where one of them does not fit, or only might not."""
        import pyarrow.json as pj

        lines = _safe_lines(values)
        if lines is None:
            return None
        block = min(max(_BYTES_PER_THREAD, 2 * longest(values)), _MAX_BLOCK_BYTES)
        reading = pj.ReadOptions(use_threads=True, block_size=block)
        try:
            table = pj.read_json(cast("Any", pa.BufferReader(lines)), reading, self._options)
            if table.num_rows != len(values):
                return None
            columns: list[Any] = [pa.concat_arrays(column.chunks) for column in table.columns]
            for at in self._to_check:
                columns[at] = _checked(columns[at], self._fields[at])
        except MemoryError:
            raise  # Arrow's is one of those below too, and says nothing about the lines
        except pa.ArrowException:
            return None
        leaves = chain.from_iterable(_leaves(columns[at]) for at in self._with_floats)
        return None if any(map(_has_negative_zero, leaves)) and _MINUS_ZERO.search(lines.to_pybytes()) else columns


@lru_cache(maxsize=16)
def arrow_reader(fields: Fields, *, ignore_others: bool) -> ArrowReader | None:
    """A reader of columns like these; None where they cannot be read here."""
    if fields and all(field.type in _READ_AS or _is_direct(field.type) for field in fields):
        return ArrowReader(fields, ignore_others=ignore_others)
    return None


def _safe_lines(values: pa.Array[Any]) -> pa.Buffer | None:
    """The payloads, a newline between them; None where one has what the reader takes and no payload may have."""
    import pyarrow.compute as pc

    texts: Any = values
    if not len(values) or bytes_of(values) > _MAX_JOINED_BYTES or not are_utf8(values):
        return None
    if not (pc.all(pc.starts_with(texts, "{")).as_py() and pc.all(pc.ends_with(texts, "}")).as_py()):
        return None
    # One list with all values in it: Arrow joins them in one step, without a Python object for each.
    everything: Any = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: Any = pc.binary_join(everything, b"\n")
    lines = cast("pa.Buffer", joined.buffers()[2].slice(0, bytes_of(joined)))
    text = lines.to_pybytes()
    # One letter is found many times quicker than three, and most blocks have none of these.
    if (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text):
        return None
    if text.count(b"\n") != len(values) - 1:
        return None
    if longest(values) <= 2 * MAX_DEPTH or opening_brackets(text) < len(values) + MAX_DEPTH:
        return lines
    brackets: Any = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
    return lines if pc.max(brackets).as_py() <= MAX_DEPTH else None


def _is_direct(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        inner = inner_fields(kind)
        return bool(inner) and all(field.nullable and _is_direct(field.type) for field in inner)
    return _is_plain(kind) or kind == pa.timestamp("us", tz="UTC")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the reader makes columns of this type itself, and takes nothing into them that may not be there."""
    return pa.types.is_integer(kind) or kind in _PLAIN


def _checked(column: pa.Array[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    """The column with its own type. Raises `ArrowInvalid` where a value may not be in it."""
    whole = column if column.type == field.type else column.cast(field.type)
    if pa.types.is_nested(field.type):
        whole.validate(full=True)  # the reader loses nulls at the start of a list (apache/arrow#51305)
    if whole.null_count and not field.nullable:
        raise pa.ArrowInvalid("a null where none may be")
    return in_range(whole)


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
