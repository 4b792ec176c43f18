"""Feeds that do to a subscription what a log does at the worst moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.metalog.log import MetadataLog, MetadataRecord, PartitionStart
from penstock.metalog.subscription import Feed, Subscription, Wanted

_PARTITIONS = 3


def _nothing() -> None:
    pass


class MeddledFeed:
    """The feed of a log, with something else that happens before each fetch, after it, or before each wake."""

    def __init__(self, log: MetadataLog) -> None:
        self._lender = log.subscribe([])
        self._feed: Feed = self._lender._feed
        self.before_fetch: Callable[[], object] = _nothing
        self.after_fetch: Callable[[], object] = _nothing
        self.before_wake: Callable[[], object] = _nothing
        self.closed = 0

    def subscribe(self, *starts: PartitionStart) -> Subscription:
        return Subscription(self, _PARTITIONS, starts)

    def fetch(self, wanted: Sequence[Wanted], timeout: float) -> Sequence[MetadataRecord]:
        self.before_fetch()
        records = self._feed.fetch(wanted, timeout)
        self.after_fetch()
        return records

    def wake(self) -> None:
        self.before_wake()
        self._feed.wake()

    def close(self) -> None:
        self.closed += 1
