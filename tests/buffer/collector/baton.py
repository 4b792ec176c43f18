"""Actors that run real code in threads of their own, one step at a time: who holds the baton runs, all others wait.

Before every step an actor gives the baton back, and a seeded random decides who has it next, how much time passes, and
who is paused for how long. So a seed is one interleaving, and the same seed is the same interleaving again.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

TICK = 0.125  # all times are multiples of it: exact as floats, and exact as the microseconds of a date
HOUR = 3600.0


class Over(BaseException):
    """Ends an actor at its next step. No `except Exception` of the code under test stops it, as a kill -9 would not."""


@dataclass(frozen=True)
class Pace:
    """How time passes. All in seconds."""

    lulls: tuple[float, ...]
    """One of these passes at every step."""
    pauses: tuple[float, ...] = ()
    """For one of these an actor does nothing, while the others go on."""
    pause_chance: float = 0.0
    kill_chance: float = 0.0


class Happened(NamedTuple):
    """A step that was taken."""

    at: float
    who: str
    what: str
    whom: str


class Actor:
    """One thread. Its `step` is called before everything that another actor could notice, or that reads a clock."""

    _of_thread: ClassVar[threading.local] = threading.local()

    def __init__(
        self, schedule: Schedule, name: str, work: Callable[[Actor], None], often_before: tuple[str, ...]
    ) -> None:
        self.name = name
        self.often_before = often_before
        self.wakes_at = 0.0
        self.suspended = 0.0
        self.is_done = False
        self.keeps_baton = False
        self._schedule = schedule
        self._work = work
        self._baton = threading.Lock()
        self._baton.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def current(cls) -> Actor | None:
        """The actor whose thread this is."""
        return getattr(cls._of_thread, "actor", None)

    def step(self, what: str, whom: str = "") -> None:
        """Let others run, and time pass; come back when it is this actor's turn to do what it is about to do."""
        self._schedule.before(self, what)
        following = self._schedule.choose(self)
        if following is not self:
            following.take_baton()
            self._baton.acquire()
        if self._schedule.is_over:
            raise Over
        self._schedule.trace.append(Happened(self._schedule.now, self.name, what, whom))

    def rest(self, seconds: float) -> None:
        """Do nothing for a while."""
        self.wakes_at = self._schedule.now + seconds
        self.step("rest")

    def take_baton(self) -> None:
        """Let it run."""
        self._baton.release()

    def join(self) -> None:
        """Wait for the end of its thread."""
        self._thread.join()

    def _run(self) -> None:
        self._baton.acquire()
        Actor._of_thread.actor = self
        try:
            if not self._schedule.is_over:
                self._work(self)
        except Over:
            pass
        except BaseException as error:
            self._schedule.fail(error)
        self.is_done = True
        self._schedule.pass_on(self)


class Schedule:
    """Decides who runs, from a seeded random. `now` is the true time, which no actor can see."""

    def __init__(self, seeded: random.Random, pace: Pace) -> None:
        self.now = 0.0
        self.is_over = False
        self.trace: list[Happened] = []
        self.paused: Counter[tuple[str, str]] = Counter()
        self._random = seeded
        self.pace = pace
        self._stays = seeded.choice((0.0, 0.5, 0.8))
        self._actors: list[Actor] = []
        self._error: BaseException | None = None
        self._all_done = threading.Event()

    def add(self, name: str, work: Callable[[Actor], None], often_before: tuple[str, ...]) -> None:
        """Add an actor, which is paused every other time before some steps. It starts when it gets the baton."""
        self._actors.append(Actor(self, name, work, often_before))

    def run(self) -> None:
        """Run all actors to their end. Raises what any of them raised."""
        self._random.choice(self._actors).take_baton()
        self._all_done.wait()
        for actor in self._actors:
            actor.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End every actor at the step that it is at."""
        self.is_over = True

    def fail(self, error: BaseException) -> None:
        """Stop because an actor raised what it should not."""
        self._error = self._error or error
        self.stop()

    def before(self, actor: Actor, what: str) -> None:
        """Let time pass, and perhaps pause or kill the actor, before it does something."""
        if self.is_over or actor.keeps_baton:
            return
        pace = self.pace
        self.now += self._random.choice(pace.lulls)
        if pace.pauses and self._random.random() < (0.5 if what in actor.often_before else pace.pause_chance):
            self._pause(actor, what)
        if self._random.random() < pace.kill_chance:
            self.trace.append(Happened(self.now, actor.name, "die before", what))
            raise Over

    def _pause(self, actor: Actor, what: str) -> None:
        pause = self._random.choice(self.pace.pauses)
        actor.wakes_at = self.now + pause
        actor.suspended += pause
        if pause >= HOUR:
            self.paused[actor.name.partition("-")[0], what] += 1

    def choose(self, actor: Actor) -> Actor:
        """Say who is next. Where all are paused, time passes until the first of them is not."""
        if self.is_over or actor.keeps_baton:
            return actor
        alive = [one for one in self._actors if not one.is_done]
        self.now = max(self.now, min(one.wakes_at for one in alive))
        awake = [one for one in alive if one.wakes_at <= self.now]
        if actor in awake and self._random.random() < self._stays:
            return actor
        return self._random.choice(awake)

    def pass_on(self, actor: Actor) -> None:
        """Give the baton of an actor that is done to another."""
        alive = [one for one in self._actors if not one.is_done]
        if not alive:
            self._all_done.set()
        elif self.is_over:
            alive[0].take_baton()
        else:
            self.choose(actor).take_baton()
