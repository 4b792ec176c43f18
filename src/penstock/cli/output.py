"""How answers look: tables, dates, and a standard output that cannot be written."""

from __future__ import annotations

import errno
import os
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def console(width: int | None = None) -> Console:
    """A console without markup: a name is shown as it is, whatever brackets and colons are in it."""
    return Console(width=width, markup=False, emoji=False)


def show(table: Table) -> None:
    """Print a table; where no terminal is, as wide as it needs to be: names are for copying."""
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
