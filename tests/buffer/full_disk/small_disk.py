"""A small file system with a buffer on it, which tests fill to the last byte or inode."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Producer, ProducerConfig
from penstock.storage import LocalStore

KIB = 1 << 10
DAY = 86_400.0
NOW = 1_800_000_000.0


class Disk:
    """A small file system with a buffer on it, and a clock that tests move."""

    def __init__(self, point: Path, manifests: str, full: str) -> None:
        self.point = point
        self.where = str(point / "store")
        self.manifests = manifests
        self.now = NOW
        self._full = full
        self._filler = point / "filler"
        self._filler.mkdir()

    def store(self) -> LocalStore:
        """The store, as a new process opens it."""
        return LocalStore(self.where, clock=lambda: self.now, uptime=lambda: int((self.now - NOW) * 1e9) + 1)

    def producer(self) -> Producer:
        """A producer that writes each call as a batch of its own."""
        config = ProducerConfig(manifest_format=self.manifests, flush_interval=0.001)
        return Producer(self.store(), config, clock=lambda: self.now)

    def consumer(self, group: str = "default") -> Consumer:
        """A consumer without a collector of its own."""
        config = ConsumerConfig(manifest_format=self.manifests, gc=False, group=group)
        return Consumer(self.store(), config, clock=lambda: self.now)

    def collect(self) -> int:
        """Run the collector as often as it takes, a day apart; return how many objects it deleted.

        A consumer starts on each day: version 1 collects what is older than the last write of the manifest.
        """
        deleted = 0
        for _ in range(3):
            self.now += DAY
            self.consumer().close()
            collector = GarbageCollector(
                self.store(), ConsumerConfig(manifest_format=self.manifests), clock=lambda: self.now
            )
            deleted += collector.collect_once().deleted
        return deleted

    def fill(self) -> None:
        """Leave no byte free, or no inode."""
        number = 0
        if self._full == "no inode":
            with suppress(OSError):
                while True:
                    (self._filler / f"{number}").touch()
                    number += 1
            assert os.statvfs(self.point).f_favail == 0
            return
        with suppress(OSError), (self._filler / "bytes").open("ab", buffering=0) as filler:
            while filler.write(bytes(64 * KIB)):
                pass
        with suppress(OSError), (self._filler / "bytes").open("ab", buffering=0) as filler:
            while filler.write(b"x"):
                pass
        assert os.statvfs(self.point).f_bavail == 0

    def free_space(self) -> None:
        """Delete what fills it."""
        shutil.rmtree(self._filler)
        self._filler.mkdir()


def produce(disk: Disk, count: int) -> None:
    """Produce `count` batches of some KiB each."""
    with disk.producer() as producer:
        for number in range(count):
            producer.produce(b"%d" % number * 4 * KIB).result()


def spares_of(disk: Disk) -> list[tuple[str, int]]:
    """The name and the inode of each spare of the buffer's reserve."""
    folder = Path(disk.where) / "ingest" / ".penstock"
    return sorted((path.name, path.stat().st_ino) for path in folder.glob("reserve-*"))


def without_owner(disk: Disk) -> None:
    """Leave the buffer as a program without owners does, for example OpenData's."""
    for path in (Path(disk.where) / "ingest").iterdir():
        if path.name in {".owner", "manifest.id"}:
            path.unlink()
