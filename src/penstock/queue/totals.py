"""The totals of a durable queue: the next id, and numbers that the events on disk must add up to."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

_RECORD = struct.Struct(">16sQQQQ")
_MODULUS = 1 << 64


class Totals(NamedTuple):
    """What a queue holds after some write.

    The next id, how many events are on disk, the sum of their ids (modulo 2^64), and how many were ever acked.
    """

    next_id: int = 0
    on_disk: int = 0
    id_sum: int = 0
    acks: int = 0

    def after(self, pushed: int, acked: Collection[int]) -> Totals:
        """The totals after so many pushes, and the acks of these ids, all of which are on disk."""
        first = self.next_id
        return Totals(
            first + pushed,
            self.on_disk + pushed - len(acked),
            (self.id_sum + sum_of_ids(first, first + pushed) - sum(acked)) % _MODULUS,
            self.acks + len(acked),
        )

    def without(self, ids: Collection[int], next_id: int) -> Totals:
        """The totals when these ids, from `next_id` on, were never pushed."""
        return Totals(next_id, self.on_disk - len(ids), (self.id_sum - sum(ids)) % _MODULUS, self.acks)

    def with_run(self, next_id: int) -> Totals:
        """The totals after pushes alone, up to this next id."""
        return self.after(max(next_id - self.next_id, 0), ())


def sum_of_ids(start: int, stop: int) -> int:
    """The sum of all ids from `start` to before `stop`.

    >>> sum_of_ids(2, 5)
    9
    """
    return (stop - start) * (start + stop - 1) // 2


def packed(queue_id: bytes, totals: Totals) -> bytes:
    """Totals as they lie in the database."""
    return _RECORD.pack(queue_id, totals.next_id, totals.on_disk, totals.id_sum, totals.acks)


def unpacked(data: bytes) -> tuple[bytes, Totals] | None:
    """The queue's id and its totals; None if that is not what these bytes are."""
    if len(data) != _RECORD.size:
        return None
    queue_id, *numbers = _RECORD.unpack(data)
    return queue_id, Totals(*numbers)
