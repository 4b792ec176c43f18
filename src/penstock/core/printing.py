"""Foreign text as one line that is safe to print: nothing in it moves a cursor or begins a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

MAX_SHOWN_CHARACTERS = 2_000
"""How much of a foreign text a message shows, unless its caller asks for another length."""

_CUT = "..."
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int = MAX_SHOWN_CHARACTERS) -> str:
    r"""The text with what a terminal or a log would act on as backslash escapes, in at most `limit` characters.

    Escaped are control, format (bidi), surrogate, private and unassigned characters, and all that end a line. Letters,
    marks, symbols and spaces of any script stay, and so does a backslash: what is printable already is not changed.

    >>> printable("orders\x1b[31m\nok", 100), printable("größe \u202e", 100), printable("a" * 100, 8)
    ('orders\\x1b[31m\\nok', 'größe \\u202e', 'aaaaa...')
    """
    if len(text) <= limit and text.isprintable():
        return text
    # More than the limit is never looked at: an escape is not shorter than what it stands for.
    escaped = list(_escaped(text[: limit + 1]))
    if sum(map(len, escaped)) <= limit:
        return "".join(escaped)
    characters_left = limit - len(_CUT)
    kept = []
    for one in escaped:
        characters_left -= len(one)
        if characters_left < 0:
            break
        kept.append(one)
    return "".join(kept) + _CUT[: max(limit, 0)]


def _escaped(text: str) -> Iterator[str]:
    for char in text:
        if char.isprintable() or unicodedata.category(char) == "Zs":
            yield char
        elif char in _ESCAPES:
            yield _ESCAPES[char]
        else:
            number = ord(char)
            width, mark = (2, "x") if number < 0x100 else (4, "u") if number < 0x10000 else (8, "U")
            yield f"\\{mark}{number:0{width}x}"
