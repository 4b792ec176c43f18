"""Checks of what a caller gave. Each raises `InvalidInput` naming what is wrong, the value, and what is allowed."""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from typing import TypeVar

from penstock.errors import InvalidInput

_Word = TypeVar("_Word", bound=StrEnum)


def as_word(field: str, words: type[_Word], given: object) -> _Word:
    """Accept one of an enumeration's words, or a member of it."""
    if isinstance(given, str) and given in set(words):
        return words(given)
    raise InvalidInput(f"{field} must be one of {', '.join(words)}, not {given!r}")


def check_config(config: object, kind: type) -> None:
    """Refuse what is no configuration of this kind."""
    if not isinstance(config, kind):
        raise InvalidInput(f"config must be a {kind.__name__}, not {type(config).__name__}")


def check_seconds(field: str, value: object, *, zero: bool = False, most: float = math.inf) -> None:
    """Refuse what is no length of time; 0 too, unless `zero`."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or not 0 <= value <= most or (value == 0 and not zero):  # type: ignore[operator]  # it is a number
        allowed = "0 or more" if zero else "above 0"
        allowed += "" if most == math.inf else f" and at most {most:.0f}"
        raise InvalidInput(f"{field} must be a number of seconds, {allowed}, not {value!r}")


def check_whole(field: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Refuse what is no whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"from {least} to {most}"
        raise InvalidInput(f"{field} must be an integer, {allowed}, not {value!r}")
