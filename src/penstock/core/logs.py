"""Loggers whose records are safe to print: foreign text in them moves no cursor, and begins no line."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping

from penstock.core.printing import printable

MAX_SHOWN = 4000
"""Characters of one value in a message; what is longer is cut."""

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n"


def get_logger(name: str) -> logging.Logger:
    """The logger of that name, with `escaping` on it: every module of Penstock gets its logger here."""
    logger = logging.getLogger(name)
    logger.addFilter(escaping)
    return logger


class _Shown:
    """A value that is put into a message: its text with escapes. The text is not made before it is needed."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value), MAX_SHOWN)

    def __repr__(self) -> str:
        return printable(repr(self._value), MAX_SHOWN)


class _Escaping(logging.Filter):
    """Takes every record, and escapes what is put into its message, and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            record.msg = printable(record.msg, max(MAX_SHOWN, len(record.msg)))
        elif record.msg is not None:
            record.msg = _Shown(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = traceback_of(record.exc_info[1])  # a formatter uses it instead of making its own
        return True


escaping = _Escaping()
"""For handlers that print records of other libraries too."""


def traceback_of(error: BaseException) -> str:
    """A traceback as Python prints it, but the message of each exception in it is one line with escapes."""
    return "\n".join(line for part in _chain(error) for line in part)


def _chain(error: BaseException) -> Iterator[list[str]]:
    """The parts of a traceback, from the first exception to the last."""
    links = list[str]()
    errors = [error]
    while (before := _before(errors[-1])) is not None and before not in errors:
        links.append(_CAUSE if errors[-1].__cause__ is before else _CONTEXT)
        errors.append(before)
    for at in reversed(range(len(errors))):
        yield list(_lines_of(errors[at]))
        if at:
            yield [links[at - 1]]


def _before(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _lines_of(error: BaseException) -> Iterator[str]:
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):"
        for frame in traceback.format_tb(error.__traceback__):
            yield from (printable(line, MAX_SHOWN) for line in frame.rstrip("\n").split("\n"))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception whose `__str__` fails
        text = "<it has no text>"
    yield printable(f"{name}: {text}" if text else name, MAX_SHOWN)
    for note in getattr(error, "__notes__", ()):
        yield printable(str(note), MAX_SHOWN)


def _shown(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str) and len(value) <= MAX_SHOWN and value.isprintable():
        return value
    return _Shown(value)
