"""Producers and the consumer are killed at random moments and started again: nothing is lost, nothing is doubled."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.buffer import Manifest
from tests.buffer.processes.received_batches import ReceivedBatches
from tests.buffer.processes.worker_tasks import Acked, Announced, Done, Finished, Got, Refused, consume, produce
from tests.buffer.processes.workers import Killed, Worker, Workers
from tests.support.manifests import NATIVE_FIRST
from tests.support.processes import Start

MANIFESTS = NATIVE_FIRST
PRODUCERS = 10


@dataclass
class ProducerProcess:
    """The messages of one producer process. One that was killed is followed by another, with another name."""

    announced: int = 0
    done: int = 0
    is_killed: bool = False


class RandomKills:
    """All processes of a run: which are alive, and what each killed producer still had to produce."""

    def __init__(self, root: Path, start: Start, produces: int, kills: int, seed: int) -> None:
        self._root = root
        self._workers = Workers(start)
        self._random = random.Random(seed)
        self._kills = kills
        self._until_kill = self._random.randint(2, 12)
        self._seeds = itertools.count(seed)
        self._to_produce = [produces // PRODUCERS] * PRODUCERS
        self._producing: dict[Worker, int] = {}
        self._dying: set[Worker] = set()  # killed, and `Killed` not yet received
        self._is_stopping = False
        self.received = ReceivedBatches()
        self.lives: dict[str, ProducerProcess] = {}
        self.killed: Counter[str] = Counter()
        self._consumer = self._start_consumer(None)
        for which in range(PRODUCERS):
            self._start_producer(which)

    def run(self) -> None:
        """Receive messages, kill and start again, until everything is produced and consumed."""
        while True:
            worker, message = self._workers.hear()
            if isinstance(message, Finished) and worker is self._consumer:
                return
            if worker in self._producing:
                self._handle_producer(worker, message)
            elif worker is self._consumer:
                self._handle_consumer(message)
            self._until_kill -= 1
            if self._kills and self._until_kill <= 0:
                self._kill_one()
            self._stop_when_all_is_received()

    def _start_producer(self, which: int) -> None:
        name = f"p{which}.{sum(life.startswith(f'p{which}.') for life in self.lives)}"
        self.lives[name] = ProducerProcess()
        args = (str(self._root), name, self._to_produce[which], next(self._seeds))
        self._producing[self._workers.start(name, produce, *args)] = which

    def _start_consumer(self, last_acked: int | None) -> Worker:
        self.received.expect_after(last_acked)
        return self._workers.start("consumer", consume, str(self._root), last_acked, next(self._seeds))

    def _handle_producer(self, worker: Worker, message: object) -> None:
        life = self.lives[worker.name]
        match message:
            case Announced():
                life.announced = message.stop
            case Done():
                self._to_produce[self._producing[worker]] -= message.stop - life.done
                life.done = message.stop
            case Finished():
                del self._producing[worker]
            case Killed():
                life.is_killed = True
                self._start_producer(self._producing.pop(worker))

    def _handle_consumer(self, message: object) -> None:
        match message:
            case Got():
                self.received.add(message)
            case Acked():
                self.received.add_ack(message)
            case Refused():
                # Its last ack was written, and it died before it could send that. But all of it was received.
                first = min(
                    (entry.sequence for entry in Manifest.read(self._root).entries), default=self.received.last + 1
                )
                assert self.received.acked + 1 < first <= self.received.last + 1
                self._consumer = self._start_consumer(self.received.last)
            case Killed():
                self._consumer = self._start_consumer(self._where_to_go_on())

    def _where_to_go_on(self) -> int | None:
        """What a caller may remember: what it received, the acks that it knows of, or nothing."""
        memory = self._random.choice((self.received.last, self.received.acked, -1))
        return None if memory < 0 else memory

    def _kill_one(self) -> None:
        # Every third kill is of the consumer.
        alive = [worker for worker in self._producing if worker not in self._dying]
        victim = self._consumer if self._kills % 3 == 0 else self._random.choice(alive or [self._consumer])
        if victim in self._dying or not alive:
            return
        self._workers.kill(victim)
        self._dying.add(victim)
        self.killed["consumer" if victim is self._consumer else "producer"] += 1
        self._kills -= 1
        self._until_kill = self._random.randint(2, 12)

    def _stop_when_all_is_received(self) -> None:
        if self._producing or self._is_stopping or self._consumer in self._dying:
            return
        if self.received.last + 1 == Manifest.read(self._root).next_sequence:
            self._consumer.child.tell("stop")
            self._is_stopping = True


@pytest.mark.parametrize(
    ("produces", "kills", "seed"),
    [
        (600, 6, 1),
        pytest.param(3_000, 20, 1, marks=pytest.mark.slow),
        *[pytest.param(20_000, 150, seed, marks=pytest.mark.chaos) for seed in (2, 3, 4)],
    ],
)
def test_processes_that_are_killed_and_started_again_lose_and_double_nothing(
    produces: int, kills: int, seed: int, tmp_path: Path, start: Start
) -> None:
    processes = RandomKills(tmp_path, start, produces, kills, seed)
    processes.run()

    received = processes.received.by_producer()
    # The calls of each process are received from the first on, in order and once: all that were done.
    for name, life in processes.lives.items():
        numbers = received.pop(name, [])
        assert numbers == list(range(len(numbers))), name
        assert life.done <= len(numbers) <= life.announced, name
        assert life.is_killed or life.done == life.announced, name
    assert not received
    assert sum(life.done for life in processes.lives.values()) == produces
    assert processes.killed == {"consumer": kills // 3, "producer": kills - kills // 3}
