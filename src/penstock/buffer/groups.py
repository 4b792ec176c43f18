"""`Groups` and `Writers`: the readers and writers of a buffer, for its operator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.buffer.config import check_group, check_start
from penstock.buffer.locations import MANIFEST_PATH
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.start import Start
from penstock.buffer.manifest.state import Writer
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
        self._store, self._path = open_store(where), manifest_path

    def list(self) -> list[GroupStatus]:
        """Every group, in the order they came. A manifest of version 1 has one, which it does not name."""
        return groups_in(_queue(self).look())

    def create(self, name: str, start: Start = "earliest") -> None:
        """Create a group. Raises `InvalidInput` if it is there, if the place is not, or on a manifest of version 1."""
        _queue(self).create_group(check_group(name), check_start(start))

    def drop(self, name: str, *, force: bool = False) -> None:
        """Remove a group, and with it what only it held back.

        Raises `NotFound` if the buffer is not there; `InvalidInput` if the group is not, and for the last one unless it
        is forced; and `OutcomeUnknown` where a reply was lost, and the group is there under another epoch.
        """
        _queue(self).drop_group(check_group(name), force=force)

    def reset(self, name: str, to: Start) -> None:
        """Let a group go on at `earliest`, `latest` or a sequence. Raises `InvalidInput` if either is not there.

        Raises `NotFound` and `OutcomeUnknown` as `drop` does.
        """
        _queue(self).reset_group(check_group(name), check_start(to))


class Writers:
    """The writers that a buffer remembers, each with what it did last.

    >>> Writers("memory://doctest-writers").list()
    {}
    """

    def __init__(self, where: str | os.PathLike[str] | ObjectStore, manifest_path: str = MANIFEST_PATH) -> None:
        self._store, self._path = open_store(where), manifest_path

    def list(self) -> Mapping[str, Writer]:
        """Every writer, the one that has not written for longest first. Raises `InvalidInput` on version 1."""
        return _queue(self).look().writers

    def drop(self, name: str) -> None:
        """Forget a writer: what it sends again is appended again. Raises `InvalidInput` if it is not there."""
        _queue(self).drop_writer(name)


def _queue(of: Groups | Writers) -> BufferQueue:
    """A new queue for each call: it has no locks that a thread of a parent process could hold in a forked child."""
    return BufferQueue(of._store, of._path, "consumer")


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
