"""The structs that msgspec decodes rows into: what each column may have in them, and their decoders."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import UNSET

from penstock.engine.parsing.parse_options import ParseOptions
from penstock.engine.parsing.payload_format import Decode, Fields, ParseFormat, attribute, inner_fields
from penstock.engine.parsing.rescued_fields import Others, others_at
from penstock.engine.parsing.row_values import PayloadFormat, format_of

_MAX_FIELDS = 256  # of structs, which are kept for the next block
_MAX_NAME_CHARS = 100


def may_be_decoded(form: PayloadFormat, fields: Fields) -> bool:
    """Whether there can be a struct for rows of these fields."""
    # Only at the top is it seen that a value without a type of its own is null, where it may not be.
    inner = chain.from_iterable(inner_fields(field.type) for field in fields)
    everything = list(_all_fields(fields))
    return (
        len(everything) <= _MAX_FIELDS
        and all(may_be_field(field.name) for field in everything)
        and not any(_is_untyped(form, field.type) and not field.nullable for field in _all_fields(inner))
    )


def _all_fields(fields: Iterable[pa.Field[Any]]) -> Iterable[pa.Field[Any]]:
    for field in fields:
        yield field
        yield from _all_fields(inner_fields(field.type))


def may_be_field(name: str) -> bool:
    """Whether a name can be that of a struct's field: msgspec writes it as it is, and decoders must stay small."""
    return name.isprintable() and not {'"', "\\"} & set(name) and len(name) <= _MAX_NAME_CHARS


def _is_untyped(form: PayloadFormat, kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or (pa.types.is_timestamp(kind) and form.has_timestamps)


@lru_cache(maxsize=64)
def struct_decoder(form: ParseFormat, fields: Fields, others: Others, forbids: bool, options: ParseOptions) -> Decode:
    """A decoder of rows with these fields, and others that have no column; where it `forbids`, with no more."""
    return format_of(form).decoders.struct(_StructTypes(form, dict(others), forbids, options).struct(fields))


class _StructTypes:
    """What msgspec takes for the values of columns; more than goes into them only where `column` looks again.

    Structs have a member for each column, and behind them one for each of the `others`, which have no column.
    """

    def __init__(
        self, form: ParseFormat, others: dict[str, tuple[str, ...]], forbids: bool, options: ParseOptions
    ) -> None:
        self._form, self._others, self._forbids, self._options = form, others, forbids, options

    def struct(self, fields: Fields, path: str = "") -> type:
        names = [*(field.name for field in fields), *others_at(path, fields, self._others)]
        types: list[Any] = [
            (attribute(at), self._type(field, path + field.name), *((None,) if field.nullable else ()))
            for at, field in enumerate(fields)
        ]
        types += [(attribute(at), *self._other()) for at in range(len(fields), len(names))]
        rename = {attribute(at): name for at, name in enumerate(names)}
        return msgspec.defstruct(
            "Row", types, rename=rename, forbid_unknown_fields=self._forbids, omit_defaults=True, kw_only=True, gc=False
        )

    def _other(self) -> tuple[Any, Any]:
        if self._options.rescue is None:
            return Any, None
        # JSON is kept as it is written; and a member that is null must not be one that is not there.
        return msgspec.Raw if self._form == ParseFormat.JSON else Any, UNSET

    def _type(self, field: pa.Field[Any], path: str) -> Any:
        kind = self._type_of(field.type, path)
        return kind | None if field.nullable and kind not in (Any, msgspec.Raw, None) else kind

    def _type_of(self, kind: pa.DataType, path: str) -> Any:
        if pa.types.is_null(kind):
            return None
        if pa.types.is_struct(kind):
            return self.struct(inner_fields(kind), f"{path}.")
        if pa.types.is_list(kind):
            return list.__class_getitem__(self._type(kind.value_field, path))
        if pa.types.is_map(kind):
            return dict.__class_getitem__((str, self._type(kind.item_field, path)))
        rule = self._options.rule(path, kind)
        if pa.types.is_integer(kind):
            most = 1 << (kind.bit_width - 1)
            whole: Any = Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
            return whole | float | str if rule.is_lenient else whole
        if pa.types.is_decimal(kind):
            return msgspec.Raw if self._form == ParseFormat.JSON else int | float | str
        if pa.types.is_timestamp(kind):
            return Any if self._form == ParseFormat.MSGPACK else (int | str if rule.converts else str)
        if pa.types.is_floating(kind):
            return float | str if rule.is_lenient else float
        if pa.types.is_boolean(kind):
            return bool | str if rule.is_lenient else bool
        return bytes if pa.types.is_binary(kind) else str
