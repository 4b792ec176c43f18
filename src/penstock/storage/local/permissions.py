"""Who may read and write the files of a local store."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import InvalidInput

_OWNER_READS_AND_WRITES = 0o600
_ALL_READ_AND_WRITE = 0o666
_OCTAL_DIGITS = re.compile(r"(?:0o?)?([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permission bits of every file that a store makes; its umask may take some away, and adds none.

    >>> oct(Permissions(0o640).directory_mode)
    '0o750'
    """

    file_mode: int

    @property
    def directory_mode(self) -> int:
        """Those of every directory: it can be entered by all who may read the files in it."""
        return self.file_mode | (self.file_mode & 0o444) >> 2

    def make_directories(self, path: str) -> None:
        """Make a directory, and those above it that are not there."""
        if os.path.isdir(path):
            return
        self.make_directories(os.path.dirname(path))
        with suppress(FileExistsError):  # another process was first, or it is a file: what comes next meets that
            os.mkdir(path, self.directory_mode)


DEFAULT_PERMISSIONS = Permissions(0o640)
"""The owner reads and writes, the owner's group reads, and all others can do neither."""


def as_permissions(mode: object) -> Permissions:
    """Accept permission bits as a number, or in octal digits. Raises `InvalidInput` for anything else.

    >>> as_permissions("660") == as_permissions(0o660)
    True
    """
    digits = _OCTAL_DIGITS.fullmatch(mode) if isinstance(mode, str) else None
    bits = int(digits[1], 8) if digits else mode
    if (
        isinstance(bits, bool)
        or not isinstance(bits, int)
        or bits & _OWNER_READS_AND_WRITES != _OWNER_READS_AND_WRITES
        or bits & ~_ALL_READ_AND_WRITE
    ):
        shown = oct(mode) if isinstance(mode, int) and not isinstance(mode, bool) else repr(mode)
        raise InvalidInput(
            f"mode must be permission bits of files such as 0o640, from 0o600 to 0o666 and without any to execute, "
            f"not {shown}"
        )
    return Permissions(bits)
