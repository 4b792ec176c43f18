"""Asking a store again that did not answer: a short failure is nobody's business, a long one is the caller's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from penstock.core import get_logger
from penstock.errors import NotFound, StorageError

TRIES = 5
_FIRST_PAUSE = 0.02

_Answer = TypeVar("_Answer")

_log = get_logger(__name__)


def patiently(call: Callable[[], _Answer], sleep: Callable[[float], object]) -> _Answer:
    """Call a store, and call it again a few times if it fails. Raises `StorageError`; `NotFound` at once."""
    for failed in range(TRIES - 1):
        try:
            return call()
        except NotFound:
            raise
        except StorageError as error:
            _log.warning("reading the metadata log: %s; trying again", error)
            sleep(_FIRST_PAUSE * 2**failed * random.random())
    return call()
