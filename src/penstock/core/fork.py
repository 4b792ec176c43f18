"""Which process this is, so that what was made before a fork can tell that it is used after it."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.errors import InvalidInput


@dataclass(slots=True)
class _Process:
    number: int


current = _Process(os.getpid())
"""Its number is this process's, also after a fork; reading it costs no system call."""


def refuse_in_child(home: int, what: object, instead: str) -> None:
    """Raise `InvalidInput` unless this is the process `home`, in which `what` was opened. To be called before any lock.

    A lock may be held by a thread that was not copied, and an epoch is the parent's: `docs/design/forks.md`.
    """
    if home != current.number:
        raise InvalidInput(
            f"{what!r} belongs to the process {home}, and cannot be used in this forked child ({current.number}): "
            f"{instead}"
        )


_Lock = TypeVar("_Lock")
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def open_in_child(lock: _Lock) -> _Lock:
    """Return a lock that is open in every forked child: a thread of the parent may hold it at the fork."""
    _locks.add(lock)
    return lock


class WorksInChild(Protocol):
    """Something with a lock that a forked child can go on using."""

    def begin_anew(self) -> None:
        """Make the lock anew: a thread of the parent may have held it at the fork, and is not in the child."""
        ...


_Owner = TypeVar("_Owner")

_works_in_child: weakref.WeakSet[WorksInChild] = weakref.WeakSet()


def begin_anew_in_child(one: WorksInChild) -> None:
    """Have `begin_anew` called in every child that is forked while this object lives."""
    _works_in_child.add(one)


_parts_of: weakref.WeakKeyDictionary[Any, Callable[[Any], Iterable[object]]] = weakref.WeakKeyDictionary()


def never_free_in_child(owner: _Owner, parts: Callable[[_Owner], Iterable[object]]) -> None:
    """Leak the `parts` of an owner in every child that is forked while the owner lives.

    For clients of libraries with threads of their own: to free one waits for those threads, and a child has none.
    """
    _parts_of[owner] = parts


def _forked() -> None:
    current.number = os.getpid()
    for owner, parts in list(_parts_of.items()):
        for part in parts(owner):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    for lock in list(_locks):
        lock._at_fork_reinit()
    for one in list(_works_in_child):
        one.begin_anew()


os.register_at_fork(after_in_child=_forked)
