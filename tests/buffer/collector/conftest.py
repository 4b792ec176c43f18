"""Stores whose objects a test can date, each kind in its own way; and buffers with a clock."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from penstock.storage import LocalStore, MemoryStore, ObjectStore
from tests.buffer.collector.buffer_with_clock import Buffer
from tests.buffer.manifest.world import SMALL
from tests.support.dated_buffer import NOW, DatedBuffer, data_path
from tests.support.minimal_stores import RedatedStore


@pytest.fixture
def dated(store: ObjectStore, tmp_path: Path) -> DatedBuffer:
    """An empty store, with a way to date its objects."""
    match store:
        case MemoryStore():
            return in_memory(store.url.removeprefix("memory://"))
        case LocalStore():
            return on_disk(tmp_path / "store")
        case _:  # the dates of a bucket cannot be set: they are changed in its replies
            redated = RedatedStore(store)
            return DatedBuffer(redated, redated.date)


@pytest.fixture
def dated_memory(fresh_name: str) -> DatedBuffer:
    """An empty store in memory, for what does not depend on the kind of store."""
    return in_memory(fresh_name)


@pytest.fixture
def with_orphans(dated_memory: DatedBuffer) -> DatedBuffer:
    """A buffer with three objects that a cycle would delete, and one that is referenced."""
    dated_memory.enqueue(data_path(0))
    dated_memory.write(*map(data_path, range(4)))
    dated_memory.set_floor()
    return dated_memory


def in_memory(name: str) -> DatedBuffer:
    now = NOW.timestamp()
    store = MemoryStore(name, clock=lambda: now)

    def date(path: str, when: datetime) -> None:
        nonlocal now
        now, before = when.timestamp(), now
        store.put(path, store.get(path).data)
        now = before

    return DatedBuffer(store, date)


def on_disk(root: Path) -> DatedBuffer:
    """Without syncs; `test_on_disk.py` has them."""

    def date(path: str, when: datetime) -> None:
        stamp = round(when.timestamp() * 1_000_000) * 1_000
        os.utime(root / path, ns=(stamp, stamp))

    return DatedBuffer(LocalStore(root, sync=False), date)


@pytest.fixture
def buffer(memory: ObjectStore) -> Buffer:
    """A buffer of version 2 whose clock a test moves on."""
    return Buffer(memory)


@pytest.fixture
def small(memory: ObjectStore) -> Buffer:
    """A buffer whose head is full with a few entries, so that there are segments, and index segments."""
    return Buffer(memory, limits=SMALL)
