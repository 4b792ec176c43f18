"""Whoever is not closed when the interpreter ends is closed then, so that what was taken is flushed."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import Protocol

from penstock.core.fork import current
from penstock.core.logs import get_logger


class Closable(Protocol):
    """Whatever can be closed."""

    def close(self) -> None:
        """Close it."""
        ...


_living: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()
_children = set[int]()

_log = get_logger(__name__)


def close_at_exit(one: Closable) -> None:
    """Close it when this process ends, unless it is forgotten before."""
    _living[one] = current.number
    # A child of `multiprocessing` ends without `atexit`, and has a list of its own, made anew in each child.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and current.number not in _children:
        _children.add(current.number)
        util.Finalize(None, _close_the_living, exitpriority=100)


def forget(one: Closable) -> None:
    """Forget it: it is closed."""
    _living.pop(one, None)


def _close_the_living() -> None:
    for one, home in list(_living.items()):
        if home != current.number:
            continue  # its threads are not in this forked child
        try:
            one.close()
        except Exception:  # noqa: BLE001  there is nobody left to raise it to
            _log.exception("closing %r at exit failed", one)


atexit.register(_close_the_living)
