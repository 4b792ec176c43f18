"""Where each key of a TOML file is.

`tomllib` does not say, so this goes through a text that `tomllib` has accepted: it looks only for keys and for where
values end, and leaves what they are to `tomllib`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_KEY = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|[\w-]+")
_STRING = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?\"{3,5}|'''.*?'{3,5}|\"(?:\\.|[^\"\\])*\"|'[^']*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def line_numbers(text: str) -> dict[KeyPath, int]:
    r"""Say on which line each key, table and element of an array begins, in a text that is TOML.

    >>> line_numbers('a.b = 1\n[[c]]\nd = [\n 2,\n {e = 3}]')[("c", 0, "d", 1, "e")]
    5
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0  # the number of the line, and up to where newlines are counted for it
        self._lines: dict[KeyPath, int] = {(): 1}
        self._arrays: dict[KeyPath, int] = {}  # arrays of tables, and the number of their last element

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._take("[["):
                table = self._header(is_array=True)
                self._take("]]")
            elif self._take("["):
                table = self._header(is_array=False)
                self._take("]")
            else:
                self._pair(table)
        return self._lines

    def _header(self, *, is_array: bool) -> KeyPath:
        path: KeyPath = ()
        *parents, last = self._key()
        for part in parents:
            path = self._note((*path, part))
            if path in self._arrays:
                path = (*path, self._arrays[path])
        path = self._note((*path, last))
        if is_array:
            self._arrays[path] = self._arrays.get(path, -1) + 1
            path = self._note((*path, self._arrays[path]))
        return path

    def _pair(self, table: KeyPath) -> None:
        for part in self._key():
            table = self._note((*table, part))
        self._take("=")
        self._value(table)

    def _key(self) -> list[str]:
        parts = list[str]()
        while not parts or self._take("."):
            self._skip_blank()
            part = self._match(_KEY)
            parts.append(tomllib.loads(f"key = {part}")["key"] if part[:1] in {'"', "'"} else part)
        return parts

    def _value(self, path: KeyPath) -> None:
        self._skip_blank()
        if self._take("["):
            number = 0
            while not self._take("]"):
                self._value(self._note((*path, number)))
                self._take(",")
                number += 1
        elif self._take("{"):
            while not self._take("}"):
                self._pair(path)
                self._take(",")
        elif self._text[self._at] in {'"', "'"}:
            self._match(_STRING)
        else:
            self._match(_SCALAR)

    def _note(self, path: KeyPath) -> KeyPath:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self._lines.setdefault(path, self._line)
        return path

    def _skip_blank(self) -> bool:
        """Go to what comes next, and say whether there is something."""
        self._match(_BLANK)
        return self._at < len(self._text)

    def _take(self, sign: str) -> bool:
        self._skip_blank()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found is not None  # noqa: S101  tomllib has read the same text
        self._at = found.end()
        return found[0]
