"""JSON payloads: which of them are one object each, and what is in those.

Where this differs from `json.loads`, on purpose: a byte-order mark, `NaN`, `Infinity` and lone surrogates (as escapes
or in UTF-8) are errors, because they are not JSON, or not Unicode; a repeated key is an error; an integer of more than
4,000 digits is infinite, where Python refuses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.lone_surrogates import first_lone_surrogate, without_lone_surrogates
from penstock.engine.parsing.payload_format import MAX_DEPTH, TOO_DEEP, Decode, Decoders, decode_each
from penstock.records import bytes_of

_ROWS_PER_CHECK = 2048
_MAX_DIGITS = 4000  # of an integer that Python converts without complaint; its limit is 4,300
_WHITESPACE = b" \t\r\n"
_BRACKETS = bytes.maketrans(b"{[}]", b"(())")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"{[}]"))
_CONSTANT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(NaN|-?Infinity)(?![ \t\r\n]*:)', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # possessive: a long string is read once


class FloatAsWritten(float):
    """A number of JSON with the digits it is written in."""

    digits = ""


class JsonPayloads:
    """How JSON is read."""

    checks_what_it_skips = True
    has_timestamps = False

    def __init__(self) -> None:
        self.decoders = Decoders(msgspec.json)
        # A struct without fields skips over everything: that reads every token, but makes no objects.
        self._skip: Decode = msgspec.json.Decoder(msgspec.defstruct("AnyObject", [], gc=False)).decode
        self._skip_value: Decode = msgspec.json.Decoder(msgspec.Raw).decode

    def why_bad(self, payload: bytes) -> str | None:
        """Why the payload is not exactly one JSON object, valid UTF-8, no deeper than 64; None where it is."""
        return _why(payload, self._skip)

    def why_no_value(self, payload: bytes) -> str | None:
        """The same for any one JSON value."""
        return _why(payload, self._skip_value)

    def with_text_for_constants(self, payload: bytes) -> bytes:
        """The payload with `NaN` and `Infinity`, which JSON does not have, as text; the same where there are none."""
        if b"NaN" not in payload and b"Infinity" not in payload:
            return payload
        return _CONSTANT.sub(lambda match: b'"%b"' % match[1] if match[1] else match[0], payload)

    def unchecked(self, values: pa.Array[Any], payloads: Sequence[bytes], refused: set[int]) -> set[int]:
        """Rows that may be nested too deep, and those that are not UTF-8: decoders do not look at either.

        Rows that a decoder refused need not be among them.
        """
        rows: set[int] = set()
        # Every other row has a bracket at least, so if one has more than 64 of them, all have that many more than rows.
        objects = len(payloads) - len(refused)
        if longest(values) > 2 * MAX_DEPTH and opening_brackets(b"".join(payloads)) >= objects + MAX_DEPTH:
            rows.update(row for row, value in enumerate(payloads) if opening_brackets(value) > MAX_DEPTH)
        if not are_utf8(values):
            rows.update(row for row, value in enumerate(payloads) if not is_utf8(value))
        return rows

    def odd_objects(self, _objects: Sequence[Any]) -> Iterable[int]:
        """Rows whose objects have inside them what no payload may have: none, that was checked."""
        return ()

    def malformed_rows(self, values: pa.Array[Any]) -> dict[int, str]:
        """What is wrong with the values that `why_bad` refuses, found without making objects."""
        bad: dict[int, str] = {}
        for start in range(0, len(values), _ROWS_PER_CHECK):
            piece = values.slice(start, _ROWS_PER_CHECK)
            payloads = cast("list[bytes]", piece.to_pylist())
            refused: set[int] = set()
            decode_each(lambda: self._skip, payloads, refused.add)
            unsure = refused | self.unchecked(piece, payloads, refused)
            reasons = ((start + row, self.why_bad(payloads[row])) for row in unsure)
            bad.update((row, why) for row, why in reasons if why is not None)
        return bad

    def decode(self, payload: bytes) -> dict[str, Any]:
        """The object in a payload that is not bad, as `json.loads` reads it."""
        return cast("dict[str, Any]", self.value(payload))

    def value(self, payload: bytes) -> Any:
        """The value in a payload that has one."""
        try:
            return self.decoders.anything(payload)
        except msgspec.MsgspecError:  # a number that msgspec refuses
            return json.loads(payload, parse_int=_integer)

    def is_object(self, raw: bytes) -> bool:
        """Whether an encoded value begins as an object."""
        return bytes(raw).lstrip(_WHITESPACE)[:1] == b"{"

    def opened(self, raw: Any) -> Any:
        """An encoded value, decoded one level deep: `Members`, a list of encoded values, or a scalar."""
        text = bytes(raw).strip(_WHITESPACE)
        first = text[:1]
        if first == b"{":
            return self.decoders.members(text)
        if first == b"[":
            return self.decoders.items(text)
        if first in b'"tfn':
            return self.decoders.anything(text)
        digits = text.decode()
        if len(digits) <= _MAX_DIGITS and not {".", "e", "E"} & set(digits):
            return int(digits)
        number = FloatAsWritten(digits)
        number.digits = digits
        return number

    def text(self, raw: Any) -> str:
        """An encoded value as compact JSON, its numbers as they are written."""
        return msgspec.json.format(bytes(raw), indent=-1).decode()

    def for_json(self, raw: Any) -> Any:
        """An encoded value, such that it can be encoded in JSON: as it is."""
        return raw

    def keeps_all_keys(self, payloads: Sequence[bytes], decoded: Sequence[Any]) -> bool:
        r"""Whether decoding is proved to have lost no member: then no object has a key twice.

        There are as many members as keys; or encoded again, as many colons as before. Every member has a colon, and a
        string keeps its own, unless they are written as `\u003a`.
        """
        text = b"\n".join(payloads)
        if type(decoded[0]) is dict and text.translate(None, _WHITESPACE).count(b'":') == sum(map(len, decoded)):
            return True
        return b"\\u003" not in text and msgspec.json.encode(decoded).count(b":") == text.count(b":")

    def has_no_more_keys(
        self,
        payloads: pa.Array[Any],
        fields: Sequence[pa.Field[Any]],
        counts: Sequence[int],
        _others: int,
        *,
        times_are_text: bool = True,
    ) -> bool:
        """Whether flat objects, from which the fields have so many values, have no key twice that has a field.

        There are two quotes for each key and each text, and no others. Or no field's name is there, as a text, more
        often than it has values. A column that may have values which are no text must not be counted as one of text.
        """
        _, offsets, data = cast("list[Any]", payloads.buffers())
        text = data.slice(memoryview(offsets).cast("i")[payloads.offset], bytes_of(payloads)).to_pybytes()
        has_escapes = b"\\" in text
        texts = [_is_text(field.type) and (times_are_text or not _is_time(field.type)) for field in fields]
        # A look at one payload tells whether there are members without a field, of which quotes prove nothing.
        if not has_escapes and payloads[0].as_py().count(b'"') <= 2 * (len(fields) + sum(texts)):
            strings = sum(count for count, is_text in zip(counts, texts, strict=True) if is_text)
            if text.count(b'"') <= 2 * (sum(counts) + strings):
                return True
        if has_escapes and (b"\\u" in text or b"\\/" in text):
            return False  # a key may be written with escapes
        return all(
            text.count(b'"%b"' % field.name.encode()) <= count for count, field in zip(counts, fields, strict=True)
        )


def _why(payload: bytes, skip: Decode) -> str | None:
    """Why a payload is not exactly what a decoder skips over, valid UTF-8, no deeper than 64; None where it is."""
    if not is_utf8(payload):
        return "not valid UTF-8"
    if not payload.strip(_WHITESPACE):
        return "the value is empty"
    try:
        skip(payload)
    except RecursionError:
        return TOO_DEEP
    except msgspec.MsgspecError as error:
        return _why_lone_surrogate(payload, skip) or str(error)
    return TOO_DEEP if opening_brackets(payload) > MAX_DEPTH and _is_deep(payload) else None


def _why_lone_surrogate(payload: bytes, skip: Decode) -> str | None:
    """What the decoder calls truncated, or malformed: half of a surrogate pair, if nothing else is wrong."""
    repaired = without_lone_surrogates(payload)
    if repaired == payload:
        return None
    try:
        skip(repaired)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return first_lone_surrogate(payload)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_time(kind)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind)


def longest(values: pa.Array[Any]) -> int:
    """The length of the longest value."""
    import pyarrow.compute as pc

    return pc.max(pc.binary_length(cast("Any", values))).as_py() or 0


def opening_brackets(text: bytes) -> int:
    """How many brackets open in a text, also in its strings: it is nested no deeper than that."""
    return text.count(b"{") + text.count(b"[")


def is_utf8(value: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def are_utf8(values: pa.Array[Any]) -> bool:
    """Whether all values are UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_deep(value: bytes) -> bool:
    """Whether well-formed JSON is nested too deep: each round takes the innermost brackets away."""
    brackets = _STRING.sub(b"", value).translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"()", b"")
    return bool(brackets)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
