"""Producers and the consumer are killed at moments of nobody's choosing, and started again: nothing is lost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.buffer import Manifest
from tests.buffer.processes.crowd import Crowd, Member, Silent
from tests.buffer.processes.roles import Acked, Announced, Done, Finished, Got, Refused, consume, produce
from tests.buffer.processes.sink import Sink
from tests.support.processes import Start

PRODUCERS = 10


@dataclass
class Life:
    """What was heard of one producer process: one that was killed is followed by another, under a name of its own."""

    announced: int = 0
    done: int = 0
    is_killed: bool = False


class Story:
    """All the processes of a run; who of them lives, and what the dead have left to do."""

    def __init__(self, root: Path, start: Start, produces: int, kills: int, seed: int) -> None:
        self._root = root
        self._crowd = Crowd(start)
        self._dice = random.Random(seed)
        self._kills = kills
        self._until_kill = self._dice.randint(2, 12)
        self._seeds = iter(range(seed, seed + 1_000_000))
        self._left = [produces // PRODUCERS] * PRODUCERS
        self._producing: dict[Member, int] = {}
        self._dying: set[Member] = set()  # killed, and not yet heard to be silent
        self._is_told = False
        self.sink = Sink()
        self.lives: dict[str, Life] = {}
        self.killed: Counter[str] = Counter()
        self._consumer = self._start_consumer(None)
        for which in range(PRODUCERS):
            self._start_producer(which)

    def run(self) -> None:
        """Hear everybody out, and kill and start again, until everything is produced and has arrived."""
        while True:
            member, word = self._crowd.hear()
            if isinstance(word, Finished) and member is self._consumer:
                return
            if member in self._producing:
                self._hear_producer(member, word)
            elif member is self._consumer:
                self._hear_consumer(word)
            self._until_kill -= 1
            if self._kills and self._until_kill <= 0:
                self._kill_somebody()
            self._stop_when_all_has_come()

    def _start_producer(self, which: int) -> None:
        name = f"p{which}.{sum(life.startswith(f'p{which}.') for life in self.lives)}"
        self.lives[name] = Life()
        args = (str(self._root), name, self._left[which], next(self._seeds))
        self._producing[self._crowd.start(name, produce, *args)] = which

    def _start_consumer(self, last_acked: int | None) -> Member:
        self.sink.expect_after(last_acked)
        return self._crowd.start("consumer", consume, str(self._root), last_acked, next(self._seeds))

    def _hear_producer(self, member: Member, word: object) -> None:
        life = self.lives[member.name]
        match word:
            case Announced():
                life.announced = word.stop
            case Done():
                self._left[self._producing[member]] -= word.stop - life.done
                life.done = word.stop
            case Finished():
                del self._producing[member]
            case Silent():
                life.is_killed = True
                self._start_producer(self._producing.pop(member))

    def _hear_consumer(self, word: object) -> None:
        match word:
            case Got():
                self.sink.take(word)
            case Acked():
                self.sink.note(word)
            case Refused():
                # Its last ack was written, and it died before it could say so. But the sink has all of that.
                first = min((entry.sequence for entry in Manifest.read(self._root).entries), default=self.sink.last + 1)
                assert self.sink.acked + 1 < first <= self.sink.last + 1
                self._consumer = self._start_consumer(self.sink.last)
            case Silent():
                self._consumer = self._start_consumer(self._where_to_go_on())

    def _where_to_go_on(self) -> int | None:
        """What a caller may remember: what it has, what it has heard of acks, or nothing at all."""
        memory = self._dice.choice((self.sink.last, self.sink.acked, -1))
        return None if memory < 0 else memory

    def _kill_somebody(self) -> None:
        # Every third one is the consumer.
        living = [member for member in self._producing if member not in self._dying]
        victim = self._consumer if self._kills % 3 == 0 else self._dice.choice(living or [self._consumer])
        if victim in self._dying or not living:
            return
        self._crowd.kill(victim)
        self._dying.add(victim)
        self.killed["consumer" if victim is self._consumer else "producer"] += 1
        self._kills -= 1
        self._until_kill = self._dice.randint(2, 12)

    def _stop_when_all_has_come(self) -> None:
        if self._producing or self._is_told or self._consumer in self._dying:
            return
        if self.sink.last + 1 == Manifest.read(self._root).next_sequence:
            self._consumer.child.tell("stop")
            self._is_told = True


@pytest.mark.parametrize(
    ("produces", "kills", "seed"),
    [(3_000, 20, 1), *[pytest.param(20_000, 150, seed, marks=pytest.mark.chaos) for seed in (2, 3, 4)]],
)
def test_processes_that_are_killed_and_started_again_lose_and_double_nothing(
    produces: int, kills: int, seed: int, tmp_path: Path, start: Start
) -> None:
    story = Story(tmp_path, start, produces, kills, seed)
    story.run()

    came = story.sink.by_producer()
    # Each process's calls arrived from the first on, in order and once: all that were done, none that was not made.
    for name, life in story.lives.items():
        numbers = came.pop(name, [])
        assert numbers == list(range(len(numbers))), name
        assert life.done <= len(numbers) <= life.announced, name
        assert life.is_killed or life.done == life.announced, name
    assert not came
    assert sum(life.done for life in story.lives.values()) == produces
    assert story.killed == {"consumer": kills // 3, "producer": kills - kills // 3}
