"""Blocks for the tests of appending: writing them, by which clock, and what is in the buffer then."""

from __future__ import annotations

from penstock import peek
from penstock.buffer import Manifest, ProducerConfig
from penstock.buffer.producer.block_appender import BlockAppender, BlockName, WrittenObject
from penstock.records import values_to_arrow
from penstock.storage import ObjectStore

NAME = BlockName("query", 1)
DEADLINE = ProducerConfig().enqueue_deadline


class Time:
    """Both clocks of a host, which a test moves on."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def appender(store: ObjectStore, time: Time | None = None) -> BlockAppender:
    return BlockAppender(store) if time is None else BlockAppender(store, clock=time, uptime=time)


def write(store: ObjectStore, *values: bytes, time: Time | None = None) -> list[WrittenObject]:
    """An object for each value."""
    return [appender(store, time).write(values_to_arrow([value])) for value in values]


def queued(store: ObjectStore) -> list[bytes]:
    return [record.value for record in peek(store, 100)]


def locations(store: ObjectStore) -> list[str]:
    return [entry.location for entry in Manifest.read(store).entries]


def objects_in(store: ObjectStore) -> set[str]:
    return {meta.path for meta in store.list_objects("ingest") if meta.path.endswith(".batch")}
