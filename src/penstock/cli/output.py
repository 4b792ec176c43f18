"""How answers look: lines, JSON, tables, dates, and a standard output that cannot be written.

Every command prints through here. Names, locations and messages come from the bucket, and whoever can write there
must not be able to move the cursor of the person who looks, or to add a line to what is printed.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from penstock.core import printable

if TYPE_CHECKING:
    from rich.console import Console

MAX_LINE = 20_000
"""Characters of one line of an answer; what is longer is cut."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def say(text: object, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(_encodable(printable(str(text), MAX_LINE), err=err), err=err)


def say_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON: on several lines, or with no indent on one."""
    text = escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))
    if _encodable(text) != text:
        text = json.dumps(value, indent=indent).replace("\x7f", "\\u007f")
    typer.echo(text)


def escaped_json(text: str) -> str:
    r"""JSON that says the same, and has in it nothing that a terminal acts on, but for its newlines.

    >>> escaped_json('{"name": "größe\x9b31m\u202e"}')
    '{"name": "größe\\u009b31m\\u202e"}'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def escaped_line(data: bytes) -> bytes:
    r"""Bytes as one line for a terminal: UTF-8 stays, and whatever a terminal acts on, or is no UTF-8, is escaped.

    >>> escaped_line("größe".encode() + b"\n\x1b[2J\xff")
    b'gr\xc3\xb6\xc3\x9fe\\n\\x1b[2J\\xff'
    """
    text = data.decode(errors="backslashreplace")
    return printable(text, 10 * len(text)).encode()


def console(width: int | None = None) -> Console:
    """A console without markup: a name is shown as it is, whatever brackets and colons are in it."""
    from rich.console import Console  # here: most answers are no tables

    return Console(width=width, markup=False, emoji=False)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; where no terminal is, as wide as it needs to be: names are for copying."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(_encodable(printable(cell, MAX_LINE))) for cell in row))
    (console() if console().is_terminal else console(width=500)).print(table)


def date(milliseconds: int) -> str:
    """A time since 1970 as people read it; nothing where no calendar has it: some clock was far off.

    >>> date(1_700_000_000_000), date(10**18)
    ('2023-11-14 22:13:20 UTC', '')
    """
    try:
        return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return ""


def is_of_stdout(error: OSError) -> bool:
    """Whether an error is that standard output has no room. One of a file would name it."""
    return error.filename is None and error.errno in _NO_ROOM


def give_up_stdout() -> None:
    """Let what is still buffered go nowhere: its last flush would fail again, and where Python is asked to, say so."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _json_escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]


def _encodable(text: str, *, err: bool = False) -> str:
    """The text, with escapes for what the stream has no bytes for."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
