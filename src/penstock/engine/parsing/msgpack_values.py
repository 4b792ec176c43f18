"""MessagePack payloads: which of them are one map with string keys each, and what is in those.

Skipping over a value would be the quickest check, but it does not look at strings and keys. So values are decoded.
The kinds of the fields are learned from the first rows; the others are decoded into structs that have exactly these
fields and kinds. What a struct takes teaches nothing new, and goes into columns without a further look at each value.
A row that the struct does not take is looked at as a dict: it is bad, or does not fit in, or it has something new, and
then the rows behind it get a new struct. A block that goes on having something new is decoded into dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, cast

import pyarrow as pa

from penstock.engine.parsing.column_kinds import ColumnKinds, max_fields
from penstock.engine.parsing.json_columns import batch_without_columns
from penstock.engine.parsing.parse_errors import MAX_DEPTH, TOO_DEEP
from penstock.records import bytes_of

if TYPE_CHECKING:
    import msgspec

_GROUP = 2048  # rows that are structs at a time, few enough to stay in the cache of a core
_HEAD = 64  # rows to learn from, at the start and wherever something new appears
_MOST_STRUCTS = 16  # for one block
_MOST_FIELDS = 256
_LONGEST_NAME = 100
NESTING = frozenset({dict, list})
_TIMESTAMPS = frozenset({datetime, type(None)})


@dataclass(frozen=True, slots=True)
class MsgpackCheck:
    """What is wrong with which row; and the others as columns or, where that is not possible, as objects.

    `misfits` says which rows are not in the columns, counted among the good ones, and why.
    """

    bad: dict[int, str]
    columns: pa.RecordBatch | None
    misfits: dict[int, str]
    objects: list[dict[str, Any]] | None


def check_msgpack(values: pa.Array[Any]) -> MsgpackCheck:
    """Find the values that are not exactly one MessagePack map, string keys at every level, no deeper than 64."""
    try:
        return _into_columns(values)
    except _GaveUp:
        return _into_objects(cast("list[bytes]", values.to_pylist()))


def decode_msgpack(values: pa.Array[Any]) -> list[dict[str, Any]]:
    """The maps in values that passed the check."""
    return list(map(_map_decoder().decode, cast("list[bytes]", values.to_pylist())))


class Refused(Exception):
    """A value that is not what it should be; says why."""


class _GaveUp(Exception):
    """The quick way into columns does not take these rows."""


def _into_columns(values: pa.Array[Any]) -> MsgpackCheck:
    """Raises `_GaveUp`."""
    gathered = _Gathered(max_fields(len(values), bytes_of(values)))
    for start in range(0, len(values), _GROUP):
        gathered.add(cast("list[bytes]", values.slice(start, _GROUP).to_pylist()))
    return MsgpackCheck(gathered.bad, gathered.columns(), gathered.misfits, None)


class _Gathered:
    """The rows so far: as columns, a group at a time, with the fields that were known by then."""

    def __init__(self, limit: int) -> None:
        self.bad: dict[int, str] = {}
        self.misfits: dict[int, str] = {}
        self._kinds = ColumnKinds(limit)
        self._fields: tuple[pa.Field[Any], ...] = ()
        self._decoder = _decoder(self._fields)
        self._structs = 0
        self._rows = 0
        self._groups: list[tuple[int, list[pa.Array[Any]]]] = []

    def add(self, payloads: Sequence[bytes]) -> None:
        import msgspec

        start = self._rows + len(self.bad) + len(self.misfits)
        rows: list[object] = []
        left = iter(payloads)
        while True:
            try:
                # A list keeps what it was given before an exception, and the loop stays out of Python.
                rows.extend(map(self._decoder.decode, left))
                break
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                at = self._rows + len(rows) + len(self.bad) + len(self.misfits)
            new = self._learn(at, [payloads[at - start]])
            if new:
                new += self._learn(at + 1, islice(left, _HEAD))
                self._renew_struct()
                rows.extend(msgspec.convert(value, _struct(self._fields)) for value in new)
        self._rows += len(rows)
        columns = [_column(_members(rows, at), field.type) for at, field in enumerate(self._fields)]
        self._groups.append((len(rows), columns))

    def columns(self) -> pa.RecordBatch:
        if not self._fields:
            return batch_without_columns(self._rows)
        columns = []
        for at, field in enumerate(self._fields):
            parts = [
                _widened(group[at], field.type) if at < len(group) else _no_values(rows, field.type)
                for rows, group in self._groups
            ]
            try:
                columns.append(pa.concat_arrays(parts))
            except pa.ArrowInvalid:
                raise _GaveUp from None  # more than one array holds
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._fields))

    def _learn(self, start: int, payloads: Iterable[bytes]) -> list[dict[str, Any]]:
        """Those that fit in; of the others it is noted why not."""
        fitting: list[dict[str, Any]] = []
        for row, payload in enumerate(payloads, start):
            try:
                value = decode(payload)
            except Refused as why:
                self.bad[row] = str(why)
                continue
            misfit = self._kinds.misfit(value)
            if misfit is None:
                fitting.append(value)
            else:
                self.misfits[row - len(self.bad)] = misfit
        return fitting

    def _renew_struct(self) -> None:
        self._structs += 1
        schema = self._kinds.schema
        if self._structs > _MOST_STRUCTS or not _may_be_struct(schema):
            raise _GaveUp
        self._fields = tuple(schema)
        self._decoder = _decoder(self._fields)


def _into_objects(payloads: Sequence[bytes]) -> MsgpackCheck:
    bad: dict[int, str] = {}
    objects: list[dict[str, Any]] = []
    for row, payload in enumerate(payloads):
        try:
            objects.append(decode(payload))
        except Refused as why:
            bad[row] = str(why)
    return MsgpackCheck(bad, None, {}, objects)


def decode(payload: bytes) -> dict[str, Any]:
    """The map in a payload. Raises `Refused`."""
    import msgspec

    if not payload:
        raise Refused("the value is empty")
    try:
        value = _map_decoder().decode(payload)
    except RecursionError:
        raise Refused(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise Refused("not valid UTF-8") from None
    except msgspec.MsgspecError as error:
        raise Refused(str(error)) from None
    check_nested(value.values(), 2)
    return value


def check_nested(values: Iterable[object], depth: int) -> None:
    """Raise `Refused` where values are nested too deep, or have in them what no column takes."""
    if NESTING.isdisjoint(map(type, values)):
        return
    if depth > MAX_DEPTH:
        raise Refused(TOO_DEEP)
    for value in values:
        if isinstance(value, dict):
            if any(type(key) is not str for key in value):
                raise Refused("a map has a key that is not a string")
            check_nested(value.values(), depth + 1)
        elif isinstance(value, list):
            check_nested(value, depth + 1)


def may_be_field(name: str) -> bool:
    """Whether a name can be that of a struct's field."""
    # msgspec writes the names of fields as they are, and the decoders that are kept must stay small.
    return name.isprintable() and not {'"', "\\"} & set(name) and len(name) <= _LONGEST_NAME


@cache
def _map_decoder() -> msgspec.msgpack.Decoder[dict[str, Any]]:
    import msgspec

    return msgspec.msgpack.Decoder(dict[str, Any])


def _may_be_struct(schema: pa.Schema) -> bool:
    fields = list(islice(_all_fields(schema), _MOST_FIELDS + 1))
    return len(fields) <= _MOST_FIELDS and all(may_be_field(field.name) for field in fields)


def _all_fields(fields: Iterable[pa.Field[Any]]) -> Iterable[pa.Field[Any]]:
    for field in fields:
        yield field
        yield from _all_fields(_inner_fields(field.type))


def _inner_fields(kind: pa.DataType) -> tuple[pa.Field[Any], ...]:
    return tuple(kind.field(at) for at in range(kind.num_fields))


@lru_cache(maxsize=64)
def _struct(fields: tuple[pa.Field[Any], ...]) -> type:
    import msgspec

    names = {_attribute(at): field.name for at, field in enumerate(fields)}
    members: list[Any] = [(_attribute(at), _type(field.type), None) for at, field in enumerate(fields)]
    return msgspec.defstruct("Row", members, rename=names, forbid_unknown_fields=True, gc=False)


@lru_cache(maxsize=64)
def _decoder(fields: tuple[pa.Field[Any], ...]) -> msgspec.msgpack.Decoder[object]:
    import msgspec

    return msgspec.msgpack.Decoder(_struct(fields))


def _attribute(at: int) -> str:
    # Fields are only ever added behind the others: each has the same attribute in all structs of a block.
    return f"field_{at}"


def _type(kind: pa.DataType) -> Any:
    """What msgspec takes for a value of this kind, or null, and for nothing else."""
    import msgspec

    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        return Any  # as a datetime, it would take text that looks like one too; see `_column`
    if pa.types.is_struct(kind):
        return _struct(_inner_fields(kind)) | None
    if pa.types.is_list(kind):
        return list.__class_getitem__(_type(kind.value_type)) | None
    if pa.types.is_int64(kind):
        # One beyond is a float, and so is then its column.
        return Annotated[int, msgspec.Meta(le=(1 << 63) - 1)] | None
    # An integer where floats are becomes the nearest float.
    return {pa.bool_(): bool, pa.float64(): float, pa.string(): str, pa.binary(): bytes}[kind] | None


def _column(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_struct(kind):
        return _struct_column(values, kind)
    if pa.types.is_list(kind):
        return _list_column(values, kind)
    if pa.types.is_timestamp(kind) and not _TIMESTAMPS.issuperset(map(type, values)):
        raise _GaveUp
    try:
        column = pa.array(values, type=kind)
    except pa.ArrowInvalid:
        if not pa.types.is_float64(kind):
            raise
        # An integer from before the first float, that no float is exactly.
        column = pa.array([None if value is None else float(value) for value in values], type=kind)
    if not isinstance(column, pa.Array):
        raise _GaveUp  # more than one array holds
    return column


def _struct_column(values: list[Any], kind: pa.StructType) -> pa.Array[Any]:
    fields = _inner_fields(kind)
    if not fields:  # then arrays cannot say how many rows there are
        return pa.array([None if value is None else {} for value in values], type=kind)
    columns = [_column(_members(values, at), field.type) for at, field in enumerate(fields)]
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=_nulls(values))


def _list_column(values: list[Any], kind: pa.ListType[Any]) -> pa.Array[Any]:
    nulls = _nulls(values)
    lists = values if nulls is None else [() if value is None else value for value in values]
    offsets = pa.array(list(accumulate(map(len, lists), initial=0)), type=pa.int32())
    items = _column(list(chain.from_iterable(lists)), kind.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=nulls)


def _nulls(values: list[Any]) -> pa.Array[Any] | None:
    return pa.array([value is None for value in values], type=pa.bool_()) if None in values else None


def _members(values: list[Any], at: int) -> list[Any]:
    name = _attribute(at)
    try:
        return list(map(attrgetter(name), values))
    except AttributeError:  # there are nulls, or structs of before the field appeared
        return [getattr(value, name, None) for value in values]


def _widened(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A column of an earlier group, with the type that it has by now."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return _no_values(len(column), kind)
    if pa.types.is_float64(kind):
        return column.cast(kind, safe=False)  # of integers, each to the nearest float
    if pa.types.is_list(kind):
        items = _widened(cast("pa.ListArray[Any]", column).values, kind.value_type)
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], children=[items])
    before = cast("pa.StructArray", column)
    members = [
        _widened(before.field(at), field.type) if at < column.type.num_fields else _no_values(len(column), field.type)
        for at, field in enumerate(_inner_fields(kind))
    ]
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:1], children=members)


def _no_values(rows: int, kind: pa.DataType) -> pa.Array[Any]:
    return cast("pa.Array[Any]", pa.nulls(rows, cast("Any", kind)))
