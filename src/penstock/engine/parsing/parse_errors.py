"""What is wrong with one payload of a block, in the words that a dead letter carries."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"

_PREFIX = "parse error: "
_MAX_REASON_CHARS = 250  # a reason says what is wrong; it never carries the payload
_MAX_PATH_CHARS = 60


class BadPayload(Exception):
    """A payload that is no row; the text says why."""


@dataclass(frozen=True, slots=True)
class ParseError:
    """One payload that is no row: its place in the values that were given, and why.

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
    return ParseError(index, _PREFIX + (text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}..."))


def shown(path: str) -> str:
    """The path of a field, quoted, and cut where it is long."""
    return repr(path if len(path) <= _MAX_PATH_CHARS else f"{path[:_MAX_PATH_CHARS]}...")
