"""A queue whose store fails on request, and a second queue on the same manifest whose store does not fail.

The manifest is the one that the test is about: of version 1, or of version 2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prometheus_client import Counter

from penstock import metrics
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.queue import BufferQueue, QueueView
from penstock.buffer.manifest.state import Limits
from penstock.storage import MemoryStore, ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.manifest.faults.recording import NOTHING, State, read_state
from tests.support.enqueuing import Shipment, enqueue

PATH = "ingest/manifest"


def entries(*locations: str) -> list[NewEntry]:
    """New entries without a word about them."""
    return [NewEntry(location, ()) for location in locations]


def do_nothing() -> None:
    """A third party that does nothing."""


@dataclass(frozen=True)
class Seen:
    """How a call went: its answer, how often it tried to write and lost, what it counted as in doubt, what is there."""

    answer: object
    tried: int
    lost: int
    there: State
    doubts: int = 0


class Scene:
    """`mine` meets what is injected into `store`, and only that; `other` works on the store below.

    `third_party` acts where that fault is injected, `during_pause` whenever `mine` waits before it tries again.
    """

    def __init__(self, name: str, seed: int = 0, *, max_late: int = 1, limits: Limits | None = None) -> None:
        self._below = MemoryStore(f"{name}-{seed}")
        self.third_party: Callable[[], object] = do_nothing
        self.during_pause: Callable[[], object] = do_nothing
        self.store = FaultyStore(
            self._below,
            seed,
            rates={},
            third_party=lambda store, path: self.third_party(),
            sleep=lambda _: None,
            max_late=max_late,
        )
        self.now = 0.0
        formats = Formats(limits=limits or Limits())
        self.mine = _queue(self.store, "producer", lambda _: self.during_pause(), formats, lambda: self.now)
        # Of another role, so that its writes are counted apart.
        self.other = _queue(self._below, "consumer", lambda _: None, formats)

    def enqueue(self, *locations: str, until: float = math.inf) -> dict[str, int]:
        """Append, and say where. The last entry is in time until then."""
        *first, last = entries(*locations)
        return dict(Shipment([*first, replace(last, deadline=until)]).enqueue(self.mine).sequences)

    def claim(self, last_acked: int | None = None) -> QueueView:
        """Take an epoch."""
        return self.mine.claim("earliest", last_acked, allow_gap=False)

    def others_enqueue(self, *locations: str) -> None:
        """The other queue appends."""
        enqueue(self.other, entries(*locations))

    def others_claim(self) -> int:
        """Another consumer takes over; its epoch."""
        return self.other.claim("earliest", None, allow_gap=False).epoch

    def others_consume(self) -> None:
        """Another consumer takes over, and dequeues everything."""
        epoch = self.others_claim()
        self.other.dequeue(epoch, self.other.look().next_sequence - 1)

    def state(self) -> State:
        """What is really there."""
        found = [meta for meta in self._below.list_objects() if meta.path == PATH]
        return read_state(self._below.get(PATH).data) if found else NOTHING

    def see(self, call: Callable[[], object], *faults: Fault) -> Seen:
        """Make a call that meets these faults, each of which has to come, and say how it went."""
        for fault in faults:
            self.store.inject(fault, path=PATH)
        tried, lost, doubts = self._counts()
        answer = call()
        assert not self.store.planned
        tried_after, lost_after, doubts_after = self._counts()
        return Seen(answer, tried_after - tried, lost_after - lost, self.state(), doubts_after - doubts)

    def _counts(self) -> tuple[int, int, int]:
        return (
            _value(metrics.buffer_manifest_writes, self.store.url, "producer"),
            _value(metrics.buffer_manifest_conflicts, self.store.url, "producer"),
            _value(metrics.buffer_enqueue_in_doubt, self.store.url),
        )


def _queue(
    store: ObjectStore,
    role: str,
    sleep: Callable[[float], object],
    formats: Formats,
    uptime: Callable[[], float] = time.monotonic,
) -> BufferQueue:
    return BufferQueue(store, PATH, role, formats=formats, sleep=sleep, jitter=lambda: 0.0, uptime=uptime)


def _value(counter: Counter, *labels: str) -> int:
    return int(next(iter(counter.labels(*labels).collect())).samples[0].value)
