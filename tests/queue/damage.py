"""Queues as a kill leaves them, what was promised of them, and damage to their files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock import DurableEventQueue
from penstock.errors import CorruptData
from penstock.queue import QueueRepair, repair_queue

MARK = "penstock-mark"
_WITHOUT_DATA = ("LOG", "LOCK", "penstock-lock", "rocksdict-config.json")


@dataclass
class Killed:
    """The files of a queue whose process is gone, and what it had reported until then."""

    path: Path
    live: dict[int, bytes] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    next_id: int = 0

    def push(self, queue: DurableEventQueue[bytes], *events: bytes) -> None:
        """Push them, in one write."""
        for pushed in [queue.push(events[0])] if len(events) == 1 else queue.push_many(events):
            self.live[pushed.id] = pushed.event
            self.next_id = pushed.id + 1

    def ack(self, queue: DurableEventQueue[bytes], ids: Iterable[int]) -> None:
        """Ack them, in one write."""
        some = list(ids)
        queue.ack_many(some)
        for identifier in some:
            del self.live[identifier]
            self.acked.add(identifier)

    def copy_to(self, path: Path) -> Path:
        """Copy the files to somewhere else."""
        return copy(self.path, path)

    def opens_with_all_or_is_refused(self, path: Path) -> bool:
        """Open a damaged copy. Either everything is there, and no id is given twice, or it says that it is damaged.

        Returns whether it opened.
        """
        before = contents(path)
        refusal = ""
        try:
            queue = DurableEventQueue(path)
        except CorruptData as error:
            refusal = str(error)
        if refusal:
            assert refusal.startswith(f"the queue in {path} is damaged: ")
            assert f"penstock queue repair {path}" in refusal
            assert contents(path) == before, "a queue that is not opened is not changed"
            return False
        with queue:
            assert {event.id: event.event for event in queue.iterate()} == self.live
            assert queue.push(b"next").id >= self.next_id
        return True

    def is_repaired(self, path: Path) -> QueueRepair:
        """Repair a damaged copy, check all that the report says, and that the damaged files are kept."""
        before = contents(path)
        report = repair_queue(path)
        assert {name: (Path(report.damaged_files) / name).read_bytes() for name in before} == before
        with DurableEventQueue(path) as queue:
            there = {event.id: event.event for event in queue.iterate()}
            assert queue.push(b"next").id == report.next_id >= self.next_id
        again = there.keys() & self.acked
        lost = self.live.keys() - there.keys()
        assert there == {identifier: event for identifier, event in self.live.items() if identifier in there} | {
            identifier: there[identifier] for identifier in again
        }
        assert report.kept == len(there)
        assert (report.first_id, report.last_id) == (min(there, default=None), max(there, default=None))
        assert report.lost_at_least <= len(lost)
        assert report.lost_at_most is None or len(lost) <= report.lost_at_most
        assert report.again_at_most is None or len(again) <= report.again_at_most
        assert all(any(first <= one <= last for first, last in report.missing_ids) for one in lost)
        assert repair_queue(path).damage == "", "it is whole now"
        return report


def copy(source: Path, target: Path) -> Path:
    """Copy a queue's files; what is there already is deleted."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def killed(path: Path, use: Callable[[Killed, DurableEventQueue[bytes]], None], *, is_closed: bool = False) -> Killed:
    """Use a queue, and keep its files as they are when its process is killed, or after it was closed."""
    killed_queue = Killed(path)
    source = path.with_name(f"{path.name}.open")
    with DurableEventQueue(source) as queue:
        use(killed_queue, queue)
        if not is_closed:
            copy(source, path)  # a kill leaves what the page cache has, and so does this
    if is_closed:
        copy(source, path)
    shutil.rmtree(source)
    return killed_queue


def contents(path: Path) -> dict[str, bytes]:
    """The files of a queue that hold data."""
    return {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.is_file() and not file.name.startswith(_WITHOUT_DATA)
    }


def data_files(path: Path) -> list[str]:
    """The names of all files but logs of RocksDB's own doings and locks."""
    return sorted(
        file.name for file in path.iterdir() if not file.name.startswith("LO") and file.name != "penstock-lock"
    )


def flip(file: Path, bit: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def cut(file: Path, size: int) -> None:
    """Let a file end early."""
    file.write_bytes(file.read_bytes()[:size])


def log_of(path: Path) -> Path:
    """The write-ahead log of a queue, which has the last writes."""
    return max(path.glob("*.log"))


def event(number: int) -> bytes:
    """An event that no other looks like."""
    return b"event %d: " % number + random.Random(number).randbytes(number % 60)
