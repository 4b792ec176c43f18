"""`Groups` and `Writers`: the readers and writers of a buffer, for its operator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from penstock.buffer.config import check_group, check_start
from penstock.buffer.locations import MANIFEST_PATH
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Start, Writer
from penstock.core import current
from penstock.storage import ObjectStore, open_store


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group as it was when it was looked at. `lag` is how many batches it has not acked."""

    name: str
    epoch: int
    acked_through: int
    lag: int
    owner: str
    taken_at: int


class Groups:
    """The readers of one buffer. Reading them disturbs no consumer; `drop` and `reset` fence the group's consumer.

    >>> groups = Groups("memory://doctest-groups")
    >>> groups.create("audit", start="latest")
    >>> [group.name for group in groups.list()]
    ['default', 'audit']
    """

    def __init__(self, where: str | os.PathLike[str] | ObjectStore, manifest_path: str = MANIFEST_PATH) -> None:
        self._queue = _QueueOfProcess(open_store(where), manifest_path)

    def list(self) -> list[GroupStatus]:
        """Every group, in the order they came. A manifest of version 1 has one, which it does not name."""
        return groups_in(self._queue().look())

    def create(self, name: str, start: Start = "earliest") -> None:
        """Create a group. Raises `InvalidInput` if it is there, if the place is not, or on a manifest of version 1."""
        self._queue().create_group(check_group(name), check_start(start))

    def drop(self, name: str, *, force: bool = False) -> None:
        """Remove a group, and with it what only it held back.

        Raises `NotFound` if the buffer is not there; `InvalidInput` if the group is not, and for the last one unless it
        is forced; and `OutcomeUnknown` where a reply was lost, and the group is there under another epoch.
        """
        self._queue().drop_group(check_group(name), force=force)

    def reset(self, name: str, to: Start) -> None:
        """Let a group go on at `earliest`, `latest` or a sequence. Raises `InvalidInput` if either is not there.

        Raises `NotFound` and `OutcomeUnknown` as `drop` does.
        """
        self._queue().reset_group(check_group(name), check_start(to))


class Writers:
    """The writers that a buffer remembers, each with what it did last.

    >>> Writers("memory://doctest-writers").list()
    {}
    """

    def __init__(self, where: str | os.PathLike[str] | ObjectStore, manifest_path: str = MANIFEST_PATH) -> None:
        self._queue = _QueueOfProcess(open_store(where), manifest_path)

    def list(self) -> Mapping[str, Writer]:
        """Every writer, the one that has not written for longest first. Raises `InvalidInput` on version 1."""
        return self._queue().look().writers

    def drop(self, name: str) -> None:
        """Forget a writer: what it sends again is appended again. Raises `InvalidInput` if it is not there."""
        self._queue().drop_writer(name)


class _QueueOfProcess:
    """The queue. A forked child has its own: a thread of the parent may have held a lock of the one before."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._create = partial(BufferQueue, store, path, "consumer")
        self._home, self._queue = current.number, self._create()

    def __call__(self) -> BufferQueue:
        if self._home != current.number:
            self._home, self._queue = current.number, self._create()
        return self._queue


def groups_in(view: QueueView) -> list[GroupStatus]:
    """Every group that a queue had when it was read."""
    return [
        GroupStatus(
            name,
            group.epoch,
            group.acked_through,
            view.next_sequence - 1 - group.acked_through,
            group.owner,
            group.taken_at,
        )
        for name, group in view.groups.items()
    ]
