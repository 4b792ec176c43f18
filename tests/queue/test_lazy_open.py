"""A lazy queue opens a million events without their values, and a queue that was drained gives its disk back."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.queue import DurableEventQueue
from tests.support.processes import PATIENCE, Parent, Start

KIB, MIB = 1 << 10, 1 << 20
NOISE = random.Random(1).randbytes(4 * MIB)  # RocksDB would compress what has a pattern
EVENTS_PER_PUSH = 1_000


def fill(path: Path, count: int) -> None:
    """Push so many events of 1 KiB."""
    dice = random.Random(count)
    with DurableEventQueue(path) as queue:
        for _ in range(count // EVENTS_PER_PUSH):
            starts = [dice.randrange(len(NOISE) - KIB) for _ in range(EVENTS_PER_PUSH)]
            queue.push_many([NOISE[start : start + KIB] for start in starts])


class Memory(NamedTuple):
    """What a process uses in bytes: now, and at most."""

    resident: int
    peak: int


def memory() -> Memory:
    """What this process uses."""
    status = Path("/proc/self/status").read_text()
    resident, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * KIB for name in ("VmRSS", "VmHWM"))
    return Memory(resident, peak)


class Unreadable:
    """A codec that refuses to decode."""

    def encode(self, event: bytes, /) -> bytes:
        return event

    def decode(self, data: bytes, /) -> bytes:
        raise AssertionError("it was decoded")


def measure(parent: Parent, path: str, lazy: bool) -> tuple[int, Memory]:
    """Open a queue, and say how many events it has and how much memory that took."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    with DurableEventQueue(path, lazy=lazy, codec=Unreadable()) as queue:
        return len(queue), memory()


@pytest.fixture
def cost(tmp_path: Path, start: Start) -> Cost:
    return Cost(tmp_path, start)


class Cost:
    """How much more memory it takes to open a full queue than an empty one."""

    def __init__(self, folder: Path, start: Start) -> None:
        self._folder = folder
        self._start = start

    def of(self, count: int, *, lazy: bool = True) -> int:
        """For so many events, at most, while it opened and after."""
        fill(self._folder / "full", count)
        empty = self._open("empty", 0, lazy)
        full = self._open("full", count, lazy)
        print(
            f"\n{count} events, {'lazy' if lazy else 'eager'}: resident {full.resident / MIB:.1f} MiB, "
            f"peak {full.peak / MIB:.1f} MiB; empty: {empty.resident / MIB:.1f}, {empty.peak / MIB:.1f}"
        )
        return full.peak - empty.peak

    def _open(self, name: str, count: int, lazy: bool) -> Memory:
        began = time.perf_counter()
        found, used = self._start(measure, str(self._folder / name), lazy).answer()
        print(f"\nopened {name} in {time.perf_counter() - began:.2f} s, with the start of a process")
        assert found == count
        assert isinstance(used, Memory)
        return used


def test_a_lazy_queue_takes_no_memory_for_the_values_of_a_hundred_thousand_events(cost: Cost) -> None:
    assert cost.of(100_000) < 50 * MIB


def test_an_eager_queue_is_seen_to_take_memory_for_its_values(cost: Cost) -> None:
    assert cost.of(100_000, lazy=False) > 90 * MIB


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_lazy_queue_takes_no_memory_for_the_values_of_a_million_events(cost: Cost) -> None:
    assert cost.of(1_000_000) < 100 * MIB


def disk_use(path: Path) -> int:
    """The bytes that the files in a folder occupy."""
    used = 0
    for entry in os.scandir(path):
        try:
            used += entry.stat().st_blocks * 512
        except FileNotFoundError:  # RocksDB has just deleted it
            continue
    return used


def drain(queue: DurableEventQueue[bytes]) -> None:
    """Take and ack everything."""
    while popped := [event.id for _ in range(EVENTS_PER_PUSH) if (event := queue.pop()) is not None]:
        queue.ack_many(popped)
    assert queue.is_empty


def wait_for_freed_disk(path: Path, most: int) -> None:
    """Return when a queue has no more than so many bytes on disk: they are freed in the background."""
    began = time.monotonic()
    between = threading.Event()
    while (used := disk_use(path)) > most:
        assert time.monotonic() - began < PATIENCE, f"{used / MIB:.1f} MiB are still there"
        between.wait(0.01)
    print(f"\n{used / MIB:.1f} MiB are used {time.monotonic() - began:.2f} s after the last ack")


@pytest.mark.parametrize(("reopens", "most"), [(False, 20 * MIB), (True, 5 * MIB)], ids=["open", "opened anew"])
def test_a_queue_that_was_drained_gives_its_disk_back(tmp_path: Path, reopens: bool, most: int) -> None:
    fill(tmp_path / "queue", 50_000)
    with DurableEventQueue(tmp_path / "queue") as queue:
        drain(queue)
        if not reopens:
            wait_for_freed_disk(tmp_path / "queue", most)
    if reopens:
        with DurableEventQueue(tmp_path / "queue"):
            wait_for_freed_disk(tmp_path / "queue", most)


def test_a_queue_that_goes_on_after_it_was_drained_gives_its_disk_back(tmp_path: Path) -> None:
    fill(tmp_path / "queue", 50_000)
    with DurableEventQueue(tmp_path / "queue") as queue:
        drain(queue)
        for _ in range(20):
            queue.push_many([NOISE[start : start + KIB] for start in range(0, MIB, KIB)])
        drain(queue)
        wait_for_freed_disk(tmp_path / "queue", 30 * MIB)
