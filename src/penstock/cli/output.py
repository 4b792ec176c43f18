"""How answers look: lines, JSON, tables, dates, and a standard output that cannot be written.

Every command prints through here. Names, locations and messages come from the bucket: a writer of the bucket must not
be able to move the cursor of a reader's terminal, or to add a line to what is printed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from penstock.core import printable

if TYPE_CHECKING:
    from rich.console import Console

MAX_LINE_CHARACTERS = 20_000
"""A longer line of an answer is cut."""

_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def say(text: object, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(_encodable(printable(str(text), MAX_LINE_CHARACTERS), err=err), err=err)


def counted(number: int, thing: str, things: str | None = None) -> str:
    """A number of things; `things` is the plural where that is not an s more.

    >>> counted(1, "event"), counted(0, "event"), counted(2, "batch", "batches")
    ('1 event', '0 events', '2 batches')
    """
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def say_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON: on several lines, or with no indent on one."""
    text = escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))
    if _encodable(text) != text:
        text = json.dumps(value, indent=indent).replace("\x7f", "\\u007f")
    typer.echo(text)


def escaped_json(text: str) -> str:
    r"""The same JSON with escapes for everything that a terminal acts on, except newlines.

    >>> escaped_json('{"name": "größe\x9b31m\u202e"}')
    '{"name": "größe\\u009b31m\\u202e"}'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escape(char) for char in text)


def escaped_line(data: bytes) -> bytes:
    r"""Bytes as one line for a terminal: UTF-8 stays; what a terminal acts on, or is no UTF-8, is escaped.

    >>> escaped_line("größe".encode() + b"\n\x1b[2J\xff")
    b'gr\xc3\xb6\xc3\x9fe\\n\\x1b[2J\\xff'
    """
    text = data.decode(errors="backslashreplace")
    return printable(text, 10 * len(text)).encode()


def console(width: int | None = None) -> Console:
    """A console without markup: brackets and colons in a name are shown as they are."""
    from rich.console import Console  # here: most answers are no tables

    return Console(width=width, markup=False, emoji=False)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; without a terminal as wide as it needs to be, so that names can be copied."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(_encodable(printable(cell, MAX_LINE_CHARACTERS))) for cell in row))
    (console() if console().is_terminal else console(width=500)).print(table)


def date(milliseconds: int) -> str:
    """A time since 1970 as people read it; empty where it is beyond the calendar, because a clock was far off.

    >>> date(1_700_000_000_000), date(10**18)
    ('2023-11-14 22:13:20 UTC', '')
    """
    try:
        return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return ""


def date_or_none(milliseconds: int) -> str:
    """As `date`; empty for 0, which stands for no time."""
    return date(milliseconds) if milliseconds else ""


def is_of_stdout(error: OSError) -> bool:
    """Whether an error is that standard output cannot be written. An error of a file has its name."""
    return error.filename is None and error.errno in _CANNOT_WRITE


def give_up_stdout() -> None:
    """Discard what is still buffered: Python's last flush would fail again, and print a second error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def not_printed(logger: str) -> Iterator[None]:
    """Keep a logger's warnings from the terminal, where the command prints the same; a configured log gets them."""
    handler = logging.NullHandler()
    logging.getLogger(logger).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(logger).removeHandler(handler)


def _json_escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]


def _encodable(text: str, *, err: bool = False) -> str:
    """The text, with escapes for characters that the stream's encoding does not have."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
