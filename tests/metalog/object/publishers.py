"""Processes that publish to one log through stores that go wrong, and write down what was acknowledged to them."""

from __future__ import annotations

import os
import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import OutcomeUnknown, StorageError
from penstock.metalog import MetadataRecord, ObjectMetadataLog, PartitionStart
from penstock.storage import open_store
from penstock.testing import Fault, FaultyStore
from tests.metalog.object.stores import WatchedStore
from tests.support.processes import PATIENCE, Child, Parent, Start

PARTITIONS, THREADS = 4, 2
RATES = {
    Fault.ERROR_AFTER: 0.04,
    Fault.APPLIED_THEN_CONFLICT: 0.04,
    Fault.LATE: 0.03,
    Fault.ERROR_BEFORE: 0.03,
    Fault.EXISTS_WHILE_ABSENT: 0.03,
    Fault.READ_ERROR: 0.03,
    Fault.DELAY: 0.1,
}


@dataclass(frozen=True)
class Place:
    """Where a log is."""

    url: str
    options: dict[str, object]

    def open(self, seed: int | None = None) -> ObjectMetadataLog:
        """The log there; with a seed, through a store that goes wrong."""
        store = open_store(self.url, **self.options)
        if seed is None:
            return ObjectMetadataLog(store)
        faulty = FaultyStore(store, seed, rates=RATES)
        with faulty.quiet():
            return ObjectMetadataLog(faulty)


def publish(parent: Parent, place: Place, ledger: str, name: str, numbers: list[int], ripe_at: int, seed: int) -> None:
    """Publish `<name>:<number>` for each number; after so many say that it is time to be killed.

    With an odd seed it goes on until it is. With an even one it waits for it, where the next object is on the store and
    its publish has not returned.
    """
    faulty = FaultyStore(open_store(place.url, **place.options), seed, rates=RATES)
    store = WatchedStore(faulty)
    with faulty.quiet():
        log = ObjectMetadataLog(store)
    dice = random.Random(seed)
    places = [dice.randrange(PARTITIONS) for _ in numbers]
    done = 0
    counting = threading.Lock()

    def one(number: int, partition: int) -> None:
        nonlocal done
        payload = f"{name}:{number}"
        try:
            report = f"ok {partition} {log.publish(partition, payload.encode())} {payload}\n"
        except OutcomeUnknown:
            report = f"unknown {partition} -1 {payload}\n"
        os.write(written, report.encode())
        with counting:
            done += 1
            if done == ripe_at and seed % 2:
                parent.tell("ripe")
            elif done == ripe_at:
                store.after = wait_for_the_end
            elif done % 10 == 0:
                parent.tell("going on")

    def wait_for_the_end(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            with counting:
                parent.tell("ripe")
                threading.Event().wait(PATIENCE)

    # A whole line by one call: it is there though the process is killed right after.
    written = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(one, numbers, places))
    log.close()
    os.close(written)
    parent.tell("finished")
    parent.wait()


@dataclass(frozen=True)
class Report:
    """How a publish ended: with an offset, or None where the outcome is unknown."""

    payload: bytes
    partition: int
    offset: int | None


def read_ledgers(folder: Path) -> list[Report]:
    lines = [line.split(" ") for ledger in folder.iterdir() for line in ledger.read_text().splitlines()]
    return [
        Report(payload.encode(), int(partition), int(offset) if kind == "ok" else None)
        for kind, partition, offset, payload in lines
    ]


class Follower:
    """Reads every partition from the beginning, in a thread, until it has everything up to given ends."""

    def __init__(self, log: ObjectMetadataLog) -> None:
        self._log = log
        self.seen: list[list[MetadataRecord]] = [[] for _ in range(PARTITIONS)]
        self._stop_at: list[int] | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self, stop_at: list[int]) -> list[list[bytes]]:
        """The payloads by partition, when it has them all."""
        self._stop_at = stop_at
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"{[len(seen) for seen in self.seen]} of {stop_at}"
        if self._failure is not None:
            raise self._failure
        for seen in self.seen:
            assert [record.offset for record in seen] == list(range(len(seen)))
        return [[record.payload for record in seen] for seen in self.seen]

    def _run(self) -> None:
        try:
            with self._log.subscribe([PartitionStart(partition) for partition in range(PARTITIONS)]) as records:
                while self._stop_at != [len(seen) for seen in self.seen]:
                    try:
                        record = records.poll(0.1)
                    except StorageError:
                        continue  # its store goes wrong too
                    if record is not None:
                        self.seen[record.partition].append(record)
        except BaseException as error:
            self._failure = error


class Crowd:
    """Publishers side by side; some are killed, and others go on in their place."""

    def __init__(self, start: Start, place: Place, folder: Path, seed: int) -> None:
        self._start = start
        self._place = place
        self._folder = folder
        self._dice = random.Random(seed)
        self._heard: queue.SimpleQueue[tuple[int, Child, Any]] = queue.SimpleQueue()
        self._lives = 0
        self._ripe = 0
        self.kills = 0
        self.held = 0

    def run(self, publishers: int, each: int, kills: int) -> None:
        """Let everybody publish so many, and kill some in the middle."""
        to_kill = set(self._dice.sample(range(publishers), kills))
        for slot in range(publishers):
            self._begin(slot, list(range(each)), self._dice.randrange(1, each // 2) if slot in to_kill else 0)
        running = publishers
        while running:
            slot, child, word = self._heard.get(timeout=10 * PATIENCE)
            if isinstance(word, BaseException):
                raise word
            if word == "finished":
                child.tell("end")
                running -= 1
            elif word == "ripe":
                child.kill()
                self.kills += 1
                # Another process publishes the rest: the reports of the killed one are in its ledger.
                reports = (self._folder / f"{slot}").read_text().splitlines()
                numbers = {int(line.rpartition(":")[2]) for line in reports}
                self._begin(slot, [number for number in range(each) if number not in numbers], 0)

    def _begin(self, slot: int, numbers: list[int], ripe_at: int) -> None:
        self._lives += 1
        name = f"{slot}.{self._lives}"
        seed = self._dice.getrandbits(32) | 1
        if ripe_at:  # of those who are killed every other one
            self._ripe += 1
            seed -= self._ripe % 2
            self.held += self._ripe % 2
        args = (str(self._folder / f"{slot}"), name, numbers, ripe_at, seed)
        child = self._start(publish, self._place, *args)
        threading.Thread(target=lambda: self._listen(slot, child), daemon=True).start()

    def _listen(self, slot: int, child: Child) -> None:
        word = None
        try:
            while word != "finished":
                word = child.hear()
                self._heard.put((slot, child, word))
        except (EOFError, OSError):
            pass  # it was killed
        except BaseException as error:  # it failed, and the test raises it
            self._heard.put((slot, child, error))
