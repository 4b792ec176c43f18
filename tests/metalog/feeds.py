"""A feed that a test interferes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from penstock.metalog import (
    InProcessMetadataLog,
    KafkaMetadataLog,
    MetadataRecord,
    ObjectMetadataLog,
    PartitionStart,
    Subscription,
)
from penstock.metalog.subscription import Wanted

_PARTITIONS = 3

AnyLog: TypeAlias = InProcessMetadataLog | ObjectMetadataLog | KafkaMetadataLog


def _nothing() -> None:
    pass


class MeddledFeed:
    """The feed of a log, with something else that happens before each fetch, after it, or before each wake."""

    def __init__(self, log: AnyLog) -> None:
        self._feed = log.open_feed()
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
        self._feed.close()
