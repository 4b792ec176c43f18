"""MessagePack payloads: which of them are one map with string keys each, and what is in those.

Skipping over a value would be the quickest check, but msgspec does not look at strings and keys that it skips. So
values are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.payload_format import MAX_DEPTH, TOO_DEEP, Decoders

NESTING = frozenset({dict, list})


class MsgpackPayloads:
    """How MessagePack is read."""

    checks_what_it_skips = False
    has_timestamps = True

    def __init__(self) -> None:
        self.decoders = Decoders(msgspec.msgpack)
        self._encode = msgspec.msgpack.Encoder().encode

    def why_bad(self, payload: bytes) -> str | None:
        """Why the payload is not exactly one map, string keys at every level, no deeper than 64; None where it is."""
        if not payload:
            return "the value is empty"
        try:
            value: dict[str, Any] = self.decoders.object(payload)
        except RecursionError:
            return TOO_DEEP
        except UnicodeDecodeError:
            return "not valid UTF-8"
        except (msgspec.MsgspecError, ValueError) as error:
            return str(error)
        return why_refused(value.values(), 2)

    def with_text_for_constants(self, payload: bytes) -> bytes:
        """The same: MessagePack has numbers that are not finite."""
        return payload

    def unchecked(self, _values: pa.Array[Any], _payloads: Sequence[bytes], _refused: set[int]) -> set[int]:
        """Rows that a decoder takes without the whole check of `why_bad`: none, but for what is in `odd_objects`."""
        return set()

    def odd_objects(self, objects: Sequence[Any]) -> Iterable[int]:
        """Rows whose objects have inside them what no payload may have: a decoder takes any keys there."""
        return (row for row, value in enumerate(objects) if type(value) is dict and why_refused(value.values(), 2))

    def decode(self, payload: bytes) -> dict[str, Any]:
        """The map in a payload that is not bad. Of a repeated key the last value counts."""
        return cast("dict[str, Any]", self.decoders.object(payload))

    def value(self, payload: bytes) -> Any:
        """The value in a payload that has one."""
        return self.decoders.anything(payload)

    def is_object(self, raw: bytes) -> bool:
        """Whether an encoded value begins as an object."""
        return 0x80 <= raw[0] <= 0x8F or raw[0] in (0xDE, 0xDF)

    def opened(self, raw: Any) -> Any:
        """An encoded value, decoded one level deep: `Members`, a list of encoded values, or a scalar."""
        data = bytes(raw)
        code = data[0]
        if self.is_object(data):
            return self.decoders.members(data)
        if 0x90 <= code <= 0x9F or code in (0xDC, 0xDD):
            return self.decoders.items(data)
        return self.decoders.anything(data)

    def text(self, raw: Any) -> str:
        """An encoded value as compact JSON."""
        return msgspec.json.encode(self.decoders.anything(bytes(raw))).decode()

    def for_json(self, raw: Any) -> Any:
        """An encoded value, such that it can be encoded in JSON: decoded."""
        return self.decoders.anything(bytes(raw))

    def keeps_all_keys(self, payloads: Sequence[bytes], decoded: Sequence[Any]) -> bool:
        """Whether decoding is proved to have lost no member: then no map has a key twice.

        There are as many members as the maps say; or encoded again, the bytes are the same.
        """
        if all(type(value) is dict and NESTING.isdisjoint(map(type, value.values())) for value in decoded):
            return sum(map(len, decoded)) == sum(map(_size, payloads))
        again, before = self._encode(decoded), b"".join(payloads)  # an array of them, which begins with its size
        return len(again) - len(before) == (1 if len(decoded) < 16 else 3) and again.endswith(before)

    def has_no_more_keys(
        self,
        payloads: pa.Array[Any],
        _fields: Sequence[pa.Field[Any]],
        counts: Sequence[int],
        others: int,
        *,
        times_are_text: bool = True,  # noqa: ARG002  keys are counted without looking at values
    ) -> bool:
        """Whether flat maps, from which fields have so many values, and other members so many, have no key twice."""
        import pyarrow.compute as pc

        first: Any = pc.binary_slice(cast("Any", payloads), 0, 1)
        codes: bytes = first.buffers()[2].to_pybytes()[: len(payloads)]
        small = {code & 0x0F: codes.count(code) for code in range(0x80, 0x90)}
        keys = sum(size * count for size, count in small.items())
        if sum(small.values()) < len(payloads):
            keys = sum(map(_size, cast("list[bytes]", payloads.to_pylist())))
        return keys <= sum(counts) + others


def why_refused(values: Iterable[object], depth: int) -> str | None:
    """Why values, at this depth, are nested too deep or have a key that is no string; None where they are fine."""
    if NESTING.isdisjoint(map(type, values)):
        return None
    if depth > MAX_DEPTH:
        return TOO_DEEP
    for value in values:
        why = None
        if isinstance(value, dict):
            if any(type(key) is not str for key in value):
                return "a map has a key that is not a string"
            why = why_refused(value.values(), depth + 1)
        elif isinstance(value, list):
            why = why_refused(value, depth + 1)
        if why is not None:
            return why
    return None


def _size(payload: bytes) -> int:
    code = payload[0]
    return code & 0x0F if code <= 0x8F else int.from_bytes(payload[1 : 3 if code == 0xDE else 5], "big")
