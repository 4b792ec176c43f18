"""How these tests write to a log, and look at what comes out of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.metalog import MetadataLog, MetadataRecord
from penstock.metalog.subscription import Subscription
from tests.support.processes import PATIENCE

Answer = TypeVar("Answer")


def payload_at(partition: int, offset: int) -> bytes:
    return b"%d@%d" % (partition, offset)


def fill(log: MetadataLog, partition: int, offsets: Iterable[int]) -> None:
    """Publish what says itself where it must be."""
    for offset in offsets:
        assert log.publish(partition, payload_at(partition, offset)) == offset


def expected(partition: int, offsets: Iterable[int]) -> list[MetadataRecord]:
    return [MetadataRecord(partition, offset, payload_at(partition, offset)) for offset in offsets]


def take(records: Subscription, count: int) -> list[MetadataRecord]:
    """So many records, one after another."""
    records_taken: list[MetadataRecord] = []
    for _ in range(count):
        record = records.poll(PATIENCE)
        assert record is not None, f"only {len(records_taken)} of {count} came"
        records_taken.append(record)
    return records_taken


def of(partition: int, records: Iterable[MetadataRecord]) -> list[MetadataRecord]:
    return [record for record in records if record.partition == partition]


async def soon(awaited: Awaitable[Answer]) -> Answer:
    return await asyncio.wait_for(awaited, PATIENCE)


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Every thread that began meanwhile ends, but those that a log has for all its readers."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("penstock-metalog-read"):
            continue
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{thread} is left"
