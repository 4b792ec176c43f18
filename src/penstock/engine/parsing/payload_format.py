"""What the readers of all formats share, and what is wrong with a payload, in the words of a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

Decode = Callable[[bytes], Any]
Fields: TypeAlias = "tuple[pa.Field[Any], ...]"
_T = TypeVar("_T")

MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"

_PREFIX = "parse error: "
_MAX_REASON_CHARS = 250  # a reason says what is wrong; it never carries the payload
_MAX_PATH_CHARS = 60
REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises for a payload; a `ValueError` for text that is not UTF-8, and for a time after 9999."""


class ParseFormat(StrEnum):
    """What payloads are written in; `auto` finds out for each, and `json-values` takes any JSON, not only objects."""

    JSON = "json"
    MSGPACK = "msgpack"
    AUTO = "auto"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    CSV = "csv"
    JSON_VALUES = "json-values"


class BadPayload(Exception):
    """A payload that is no row; the text says why."""


@dataclass(frozen=True, slots=True)
class ParseError:
    """One payload that is no row: its place in the values that were given, and why.

    The reason begins with `parse error: `, is shorter than 300 characters, and does not repeat the payload.
    """

    index: int
    reason: str


def parse_error(index: int, why: object) -> ParseError:
    """A `ParseError` with the prefix, cut to its length.

    >>> parse_error(3, "the value is empty")
    ParseError(index=3, reason='parse error: the value is empty')
    """
    text = str(why)
    return ParseError(index, _PREFIX + (text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}..."))


def shown(path: str) -> str:
    """The path of a field, quoted, and cut where it is long."""
    return repr(path if len(path) <= _MAX_PATH_CHARS else f"{path[:_MAX_PATH_CHARS]}...")


def inner_fields(kind: pa.DataType) -> Fields:
    """The fields of a struct; of a list or a map, what is in it."""
    return tuple(kind.field(at) for at in range(kind.num_fields))


def attribute(at: int) -> str:
    """What the column at this place is called in a struct for rows."""
    return f"field_{at}"


class Members(list[tuple[str, Any]]):
    """The members of an object in their order, each value still encoded; a repeated key is there twice."""


class Decoders:
    """The decoders of a format, of which `module` is msgspec's."""

    def __init__(self, module: Any) -> None:
        self.anything: Decode = module.Decoder().decode
        self.object: Decode = module.Decoder(dict[str, Any]).decode
        self.items: Decode = module.Decoder(list[msgspec.Raw]).decode
        self._pairs: Decode = module.Decoder(dict[_Key, msgspec.Raw], dec_hook=_Key).decode
        self._module = module

    def members(self, payload: bytes) -> Members:
        """The members of an object, one level deep."""
        return Members((key.name, value) for key, value in self._pairs(payload).items())

    def struct(self, row: type) -> Decode:
        """A decoder of payloads into this struct."""
        decode: Decode = self._module.Decoder(row).decode
        return decode


class _Key:
    """A key of an object, distinct from all others, so that a dict keeps each of its members."""

    def __init__(self, _: type, name: object) -> None:
        self.name = name


def decode_each(
    decoder: Callable[[], Decode], payloads: Sequence[bytes], refused: Callable[[int], object]
) -> list[Any]:
    """What a decoder makes of each payload; of those that it refuses, what `refused` makes of their row.

    The decoder is asked for again after each refusal: there may be a better one by then.
    """
    rows: list[Any] = []
    rest = iter(payloads)
    while len(rows) < len(payloads):
        try:
            # A list keeps what it was given before an exception, and the loop stays out of Python.
            rows.extend(map(decoder(), rest))
        except REFUSALS:
            rows.append(refused(len(rows)))
    return rows


def without(items: Sequence[_T], rows: Iterable[int]) -> list[_T]:
    """All items but those of some rows. Many times quicker than asking for each item, where the rows are few.

    >>> without(range(5), {3, 1})
    [0, 2, 4]
    """
    kept: list[_T] = []
    for row, end in pairwise([-1, *sorted(rows), len(items)]):
        kept += items[row + 1 : end]
    return kept


def values_without(values: pa.Array[Any], rows: Iterable[int]) -> pa.Array[Any]:
    """The same of a column."""
    ends = pairwise([-1, *sorted(rows), len(values)])
    return pa.concat_arrays([values.slice(row + 1, end - row - 1) for row, end in ends])
