"""Where JSON has half of a surrogate pair: an escape that is no character. The decoder does not say so."""

from __future__ import annotations

import json
import re

from penstock.engine.parsing.payload_format import shown

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"(%b%b)|(%b|%b)|\\." % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]', re.DOTALL)
_ANYTHING = b"\\ufffd"  # as long as an escape


def without_lone_surrogates(payload: bytes) -> bytes:
    """The payload with another character in place of each; the same where there are none."""
    if b"\\ud" not in payload and b"\\uD" not in payload:
        return payload
    return _ESCAPE.sub(lambda match: _ANYTHING if match[2] else match[0], payload)


def first_lone_surrogate(payload: bytes) -> str:
    """What and where the first one is, in a payload that has one and is JSON but for that."""
    at = next(match for match in _ESCAPE.finditer(payload) if match[2])
    escape = at[2].decode()
    place = _place(payload, at.start())
    return f"the escape {escape} at byte {at.start()}{place} is a lone surrogate: half of a pair, and no character"


def _place(payload: bytes, at: int) -> str:
    """The field, or the name of one, that a byte is in."""
    path: list[str] = []  # a name for each object that is open, and [] for each array
    is_name = False
    for token in _TOKEN.finditer(payload):
        text = token[0]
        if token.start() < at < token.end():
            break
        if text == b"{":
            path.append("")
            is_name = True
        elif text == b"[":
            path.append("[]")
            is_name = False
        elif text in b"}]":
            path.pop()
        elif text == b",":
            is_name = path[-1] != "[]"
        elif text == b":":
            is_name = False
        elif is_name:
            path[-1] = json.loads(text)
    if is_name:
        path.pop()
    name = shown(".".join(path).replace(".[]", "[]"))
    if not is_name:
        return f", in the field {name},"
    return f", in the name of a field of {name}," if path else ", in the name of a field,"
