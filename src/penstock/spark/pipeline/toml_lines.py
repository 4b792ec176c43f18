"""On which line of a TOML file a key is, for errors. `tomllib` does not say, so it is asked about parts of the file."""

from __future__ import annotations

import tomllib
from itertools import product
from typing import Any, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

# What may close a part of a file that ends within a text, and within arrays and inline tables.
_CLOSINGS = [
    text + "".join(brackets)
    for depth in range(4)
    for brackets in product("]}", repeat=depth)
    for text in ("", '"""', "'''")
]


def line_of(text: str, path: KeyPath) -> int:
    r"""On which line of a TOML file a key, table or element of an array begins: where the file has it if it ends there.

    For a path that is not in the file it is the line of the nearest table or array above.

    >>> line_of('a.b = 1\n[[c]]\nd = [\n 2,\n {e = 3}]', ("c", 0, "d", 1, "e"))
    5
    """
    whole = tomllib.loads(text)
    while not _has(whole, path):
        path = path[:-1]
    lines = text.split("\n")
    return next((number for number in range(1, len(lines)) if _has(_parsed(lines[:number]), path)), len(lines))


def _parsed(lines: list[str]) -> Any:
    part = "\n".join(lines) + "\n"
    for closing in _CLOSINGS:
        try:
            return tomllib.loads(part + closing)
        except tomllib.TOMLDecodeError:
            continue
    return None  # deeper than that; the line where it is closed will do


def _has(content: Any, path: KeyPath) -> bool:
    try:
        for part in path:
            content = content[part]
    except (KeyError, IndexError, TypeError):
        return False
    return content is not None
