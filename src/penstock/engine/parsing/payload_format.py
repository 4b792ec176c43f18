"""What the readers of both formats share; `payload_formats` says which formats there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

Decode = Callable[[bytes], Any]
_T = TypeVar("_T")

REFUSALS = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises for a payload; a `ValueError` for text that is not UTF-8, and for a time after 9999."""


class ParseFormat(StrEnum):
    """What payloads are written in."""

    JSON = "json"
    MSGPACK = "msgpack"


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
    return list(chain.from_iterable(items[start:end] for start, end in _between(rows, len(items))))


def values_without(values: pa.Array[Any], rows: Iterable[int]) -> pa.Array[Any]:
    """The same of a column."""
    return pa.concat_arrays([values.slice(start, end - start) for start, end in _between(rows, len(values))])


def _between(rows: Iterable[int], total: int) -> Iterable[tuple[int, int]]:
    ends = [*sorted(rows), total]
    return zip([0, *(row + 1 for row in ends[:-1])], ends, strict=True)
