"""`ParseError`: what is wrong with one value of a block, in the words a dead letter carries."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "parse error: "
MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"

_MOST = 250  # a reason says what is wrong; it never carries the payload


@dataclass(frozen=True, slots=True)
class ParseError:
    """One value that could not be used: its row in the values that were given, and why.

    The reason begins with `parse error: `, is shorter than 300 characters, and does not repeat the payload.
    """

    index: int
    reason: str


def parse_error(index: int, why: object) -> ParseError:
    """A `ParseError` with the prefix, cut to its length.

    >>> parse_error(3, "the value is empty")
    ParseError(index=3, reason='parse error: the value is empty')
    """
    text = str(why)
    return ParseError(index, PREFIX + (text if len(text) <= _MOST else f"{text[:_MOST]}..."))
