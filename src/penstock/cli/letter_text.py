"""How a dead letter is shown: lines for people, and JSON for scripts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from penstock.cli.output import counted, escaped_line

if TYPE_CHECKING:
    from penstock.engine import StoredLetter

_MAX_SHOWN_BYTES = 64 << 10
_HEX_BYTES_PER_LINE = 16
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_OPENING, _CLOSING = {"{", "["}, {"}", "]"}


def letter_json(letter: StoredLetter) -> dict[str, Any]:
    """All of a letter, for scripts."""
    return {
        "id": letter.id,
        "at": iso_time(letter.at),
        "stage": letter.stage,
        "reason": letter.reason,
        "sequence": letter.sequence,
        "index": letter.index,
        "origin": letter.origin,
        "timestamp_ms": letter.timestamp_ms,
        **_bytes_json("key", letter.key),
        "headers": [{"name": name, **_bytes_json("value", value)} for name, value in letter.headers or ()],
        **_bytes_json("payload", letter.payload),
    }


def _bytes_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as text, or as base64 under another name where they are none: as `penstock consume --json` has them."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def letter_rows(letter: StoredLetter, replayed: dict[str, Any] | None) -> list[tuple[str, str]]:
    """What is known of a letter, each with its name; `replayed` says into which buffer it went, and when."""
    origin = "not known: a function before it may have changed the records"
    if letter.sequence is not None:
        event = "the whole batch" if letter.index is None else f"event {letter.index}"
        origin = f"batch {letter.sequence}, {event}"
    if letter.origin is not None:
        origin = f"block {letter.sequence}, {event}, of the engine's run {letter.origin}"
    rows = [
        ("id", letter.id),
        ("set aside", shown_time(letter.at)),
        ("stage", letter.stage),
        ("reason", letter.reason),
        ("from", origin),
        ("key", "none" if letter.key is None else escaped_line(letter.key).decode()),
    ]
    rows += [("header", f"{name}: {escaped_line(value).decode()}") for name, value in letter.headers or ()]
    if replayed is not None:
        into = f"into {replayed['to']}, at {replayed['at']}"
        rows.append(("replayed", into if replayed["done"] else f"{into}, begun and not finished"))
    size = "none" if letter.payload is None else counted(len(letter.payload), "byte")
    return [*rows, ("payload", size)]


def payload_lines(payload: bytes | None) -> Iterator[str]:
    """A payload as people read it: JSON with indents, text, or hexadecimal."""
    if not payload:
        return
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and len(payload) <= _MAX_SHOWN_BYTES:
        with suppress(ValueError, RecursionError):  # the reason may be that it is no JSON, or has a key twice
            json.loads(text, object_pairs_hook=_unique)
            text = _indented(text)
    shown = payload[:_MAX_SHOWN_BYTES]
    if text is not None and all(char.isprintable() or char in "\n\r\t" for char in text[:_MAX_SHOWN_BYTES]):
        yield from text[:_MAX_SHOWN_BYTES].expandtabs().splitlines()
    else:
        for start in range(0, len(shown), _HEX_BYTES_PER_LINE):
            piece = shown[start : start + _HEX_BYTES_PER_LINE]
            ascii_text = "".join(chr(one) if 32 <= one < 127 else "." for one in piece)
            yield f"{start:08x}  {piece.hex(' '):<{3 * _HEX_BYTES_PER_LINE}} {ascii_text}"
    if len(payload) > _MAX_SHOWN_BYTES:
        yield f"and {len(payload) - _MAX_SHOWN_BYTES} bytes more: --raw writes them all"


def _indented(text: str) -> str:
    """JSON on several lines, with each number and text as the payload has it: they may be why it is a dead letter."""
    shown, depth, before = list[str](), 0, ""
    words = _TOKEN.findall(text)
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        depth += (word in _OPENING) - (word in _CLOSING)
        line_break = "\n" + "  " * depth
        if word in _CLOSING and before not in _OPENING:
            shown.append(line_break)
        shown.append(": " if word == ":" else word)
        if word == "," or (word in _OPENING and after not in _CLOSING):
            shown.append(line_break)
        before = word
    return "".join(shown)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def shown_time(at: datetime | None) -> str:
    """A time, as people read it; empty where there is none."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def iso_time(at: datetime | None) -> str | None:
    """A time, as scripts read it."""
    return None if at is None else at.isoformat()
