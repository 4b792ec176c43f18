"""CSV payloads: one line each, quoted as RFC 4180 says, whose columns have names that are given.

There is only text in CSV, so a value goes into a column of another type where its text has one sensible meaning there:
the lenient rules. A field without characters is null; one that is `""` is text without characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.engine.parsing.json_payloads import is_utf8
from penstock.engine.parsing.payload_format import BadPayload


class CsvDecoder:
    """Reads lines of columns with these names."""

    def __init__(self, names: Sequence[str], delimiter: str) -> None:
        self._names, self._delimiter = tuple(names), delimiter
        mark = re.escape(delimiter)
        # Possessive: a field is read once, however it ends.
        self._field = re.compile(rf'(?:"((?:[^"]|"")*+)"|([^"{mark}\r\n]*+))(?:({mark})|\Z)')

    def __call__(self, payload: bytes) -> dict[str, str | None]:
        """The fields of a line, by name. Raises `BadPayload`."""
        if not payload:
            raise BadPayload("the value is empty")
        if not is_utf8(payload):
            raise BadPayload("not valid UTF-8")
        line = payload.decode().removesuffix("\n").removesuffix("\r")
        fields = self._fields(line)
        if len(fields) != len(self._names):
            raise BadPayload(f"the CSV line has {len(fields)} fields, and there are {len(self._names)} columns")
        return dict(zip(self._names, fields, strict=True))

    def _fields(self, line: str) -> list[str | None]:
        if '"' not in line and "\n" not in line and "\r" not in line:
            return [field or None for field in line.split(self._delimiter)]
        fields: list[str | None] = []
        at = 0
        while True:
            found = self._field.match(line, at)
            if found is None:
                raise BadPayload(f"CSV is malformed: a quote or a line end where none may be (from character {at} on)")
            quoted, plain, delimiter = found.groups()
            fields.append(plain or None if quoted is None else quoted.replace('""', '"'))
            at = found.end()
            if delimiter is None:
                return fields
