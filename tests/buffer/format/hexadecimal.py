"""Bytes that a person wrote down from the tables of a format."""

from __future__ import annotations

import re


def by_hand(text: str) -> bytes:
    """Hexadecimal digits, in any layout; what follows a # is for the reader.

    >>> by_hand("02 00  # a length\\n 6869  # and that many bytes")
    b'\\x02\\x00hi'
    """
    return bytes.fromhex(re.sub(r"#.*", "", text))
