"""Actors that run real code, each in its own thread, and only one at a time.

Before every step an actor ends its turn. A seeded random chooses whose turn is next, how much time passes, and
which actor is paused for how long. So a seed is one interleaving, and the same seed gives the same interleaving again.
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


class Ended(BaseException):
    """Ends an actor at its next step. Like a kill -9 it passes every `except Exception` of the code under test."""


@dataclass(frozen=True)
class Pace:
    """How time passes. All in seconds."""

    step_seconds: tuple[float, ...]
    """One of these passes at every step."""
    pauses: tuple[float, ...] = ()
    """For one of these an actor does nothing, while the others go on."""
    pause_chance: float = 0.0
    kill_chance: float = 0.0


class TracedStep(NamedTuple):
    """A step of an actor, and the path that it was about."""

    at: float
    actor: str
    what: str
    path: str


class Actor:
    """One thread. It calls `step` before everything that another actor could see, and before it reads a clock."""

    _of_thread: ClassVar[threading.local] = threading.local()

    def __init__(
        self, schedule: Schedule, name: str, work: Callable[[Actor], None], often_before: tuple[str, ...]
    ) -> None:
        self.name = name
        self.often_before = often_before
        self.wakes_at = 0.0
        self.suspended = 0.0
        self.is_done = False
        self.keeps_turn = False
        self._schedule = schedule
        self._work = work
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def current(cls) -> Actor | None:
        """The actor whose thread this is."""
        return getattr(cls._of_thread, "actor", None)

    def step(self, what: str, path: str = "") -> None:
        """Let others run and time pass; return when it is this actor's turn to take the step."""
        self._schedule.before(self, what)
        following = self._schedule.choose(self)
        if following is not self:
            following.start_turn()
            self._turn.acquire()
        if self._schedule.is_over:
            raise Ended
        self._schedule.trace.append(TracedStep(self._schedule.now, self.name, what, path))

    def rest(self, seconds: float) -> None:
        """Do nothing for a while."""
        self.wakes_at = self._schedule.now + seconds
        self.step("rest")

    def start_turn(self) -> None:
        """Let it run."""
        self._turn.release()

    def join(self) -> None:
        """Wait for the end of its thread."""
        self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        Actor._of_thread.actor = self
        try:
            if not self._schedule.is_over:
                self._work(self)
        except Ended:
            pass
        except BaseException as error:
            self._schedule.fail(error)
        self.is_done = True
        self._schedule.end_turn(self)


class Schedule:
    """Chooses whose turn it is, from a seeded random. `now` is the true time, which no actor can see."""

    def __init__(self, seeded: random.Random, pace: Pace) -> None:
        self.now = 0.0
        self.is_over = False
        self.trace: list[TracedStep] = []
        self.paused: Counter[tuple[str, str]] = Counter()
        self._random = seeded
        self.pace = pace
        self._stays = seeded.choice((0.0, 0.5, 0.8))
        self._actors: list[Actor] = []
        self._error: BaseException | None = None
        self._all_done = threading.Event()

    def add(self, name: str, work: Callable[[Actor], None], often_before: tuple[str, ...]) -> None:
        """Add an actor, which is paused every other time before some steps. It starts at its first turn."""
        self._actors.append(Actor(self, name, work, often_before))

    def run(self) -> None:
        """Run all actors to their end. Raises what any of them raised."""
        self._random.choice(self._actors).start_turn()
        self._all_done.wait()
        for actor in self._actors:
            actor.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End every actor at its next step."""
        self.is_over = True

    def fail(self, error: BaseException) -> None:
        """Stop because of an unexpected error of an actor."""
        self._error = self._error or error
        self.stop()

    def before(self, actor: Actor, what: str) -> None:
        """Let time pass, and perhaps pause or kill the actor, before a step."""
        if self.is_over or actor.keeps_turn:
            return
        pace = self.pace
        self.now += self._random.choice(pace.step_seconds)
        if pace.pauses and self._random.random() < (0.5 if what in actor.often_before else pace.pause_chance):
            self._pause(actor, what)
        if self._random.random() < pace.kill_chance:
            self.trace.append(TracedStep(self.now, actor.name, "die before", what))
            raise Ended

    def _pause(self, actor: Actor, what: str) -> None:
        pause = self._random.choice(self.pace.pauses)
        actor.wakes_at = self.now + pause
        actor.suspended += pause
        if pause >= HOUR:
            self.paused[actor.name.partition("-")[0], what] += 1

    def choose(self, actor: Actor) -> Actor:
        """Return whose turn is next. Where all are paused, time passes until the first pause ends."""
        if self.is_over or actor.keeps_turn:
            return actor
        alive = [one for one in self._actors if not one.is_done]
        self.now = max(self.now, min(one.wakes_at for one in alive))
        awake = [one for one in alive if one.wakes_at <= self.now]
        if actor in awake and self._random.random() < self._stays:
            return actor
        return self._random.choice(awake)

    def end_turn(self, actor: Actor) -> None:
        """After the last turn of an actor, start the turn of another."""
        alive = [one for one in self._actors if not one.is_done]
        if not alive:
            self._all_done.set()
        elif self.is_over:
            alive[0].start_turn()
        else:
            self.choose(actor).start_turn()
