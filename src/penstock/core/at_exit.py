"""What is still open when the interpreter ends is closed then, so that its events are flushed."""

from __future__ import annotations

import atexit
import sys
import weakref

from penstock.core.closing import Closing
from penstock.core.fork import current
from penstock.core.logs import get_logger

_still_open: weakref.WeakKeyDictionary[Closing, int] = weakref.WeakKeyDictionary()
_children_with_finalizer = set[int]()

_log = get_logger(__name__)


def close_at_exit(one: Closing) -> None:
    """Close it when this process ends, unless it is forgotten before."""
    _still_open[one] = current.number
    # A child of `multiprocessing` ends without `atexit`; it has a list of its own, which is empty in each new child.
    util = sys.modules.get("multiprocessing.util")
    if util is not None and current.number not in _children_with_finalizer:
        _children_with_finalizer.add(current.number)
        util.Finalize(None, _close_all, exitpriority=100)


def forget(one: Closing) -> None:
    """Forget it: it is closed."""
    _still_open.pop(one, None)


def _close_all() -> None:
    for one, home in list(_still_open.items()):
        if home != current.number:
            continue  # its threads are not in this forked child
        try:
            one.close()
        except Exception:  # noqa: BLE001  no caller is left to raise it to
            _log.exception("closing %r at exit failed", one)


atexit.register(_close_all)
