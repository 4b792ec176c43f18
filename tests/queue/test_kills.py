"""A process is killed at each step of a push and of an ack, and at random moments, over and over."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.queue import DurableEvent, DurableEventQueue
from tests.queue.rocksdb_calls import SYNCS, WRITES, Real, replace_calls
from tests.support.processes import Child, Parent, Start

# --- at each step


def die(*_: object, **__: object) -> None:
    """End this process as a power switch would."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(*_: object, **__: object) -> None:
    die()


def die_after(real: Real, *args: Any, **kwargs: Any) -> None:
    real(*args, **kwargs)
    die()


STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the log is written": lambda patch: replace_calls(patch, WRITES, die_before),
    "between the log and its sync": lambda patch: replace_calls(patch, WRITES, die_after),
    "after the sync": lambda patch: replace_calls(patch, SYNCS, die_after),
    "before the mark is written": lambda patch: patch.setattr(os, "pwrite", die),
    "after the mark is written": lambda patch: patch.setattr(os, "pwrite", partial(die_after, os.pwrite)),
}


PUSHES: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"new"),
    "push_many": lambda queue: queue.push_many([b"new"] * 3),
}
ACKS: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "ack of one in flight": lambda queue: queue.ack(0),
    "ack of one that is ready": lambda queue: queue.ack(2),
    "ack_many": lambda queue: queue.ack_many([0, 1, 2]),
}
CALLS = PUSHES | ACKS
CHANGED = {"push": [3], "push_many": [3, 4, 5], "ack of one in flight": [0], "ack of one that is ready": [2]}
CHANGED["ack_many"] = [0, 1, 2]

BEFORE = [0, 1, 2]  # on disk before the call; 0 is in flight


def after_call(call: str) -> list[int]:
    """What is on disk when the call has happened."""
    return sorted(set(BEFORE) ^ set(CHANGED[call]))


def die_in_call(parent: Parent, path: str, call: str, step: str) -> None:
    """Push three events and take one; then make the call, and die at the step."""
    queue = DurableEventQueue(path, clock=lambda: 0.0)
    queue.push_many([b"old"] * 3)
    queue.pop()
    STEPS[step](pytest.MonkeyPatch())
    parent.tell("begins")
    CALLS[call](queue)
    parent.tell("has returned")


@dataclass(frozen=True)
class Killed:
    """A queue whose process was killed."""

    path: Path

    def ids(self, *, lazy: bool) -> list[int]:
        """What is ready after it is opened anew, in the order in which it comes."""
        with DurableEventQueue(self.path, lazy=lazy) as queue:
            found = drain(queue)
            assert len(found) == len(queue)
            return [event.id for event in found]


def drain(queue: DurableEventQueue[bytes]) -> list[DurableEvent[bytes]]:
    found = []
    while (event := queue.pop()) is not None:
        found.append(event)
    return found


@pytest.fixture
def kill_in(tmp_path: Path, start: Start) -> Callable[[str, str], Killed]:
    """Kill a process in the middle of a call."""

    def kill_in(call: str, step: str) -> Killed:
        child = start(die_in_call, str(tmp_path / "queue"), call, step)
        assert child.hear() == "begins"
        with pytest.raises(EOFError):  # the end of the pipe, and no word of a return
            child.hear()
        child.kill()
        return Killed(tmp_path / "queue")

    return kill_in


each_call = pytest.mark.parametrize(
    "call", [call if call.endswith("many") else pytest.param(call, marks=pytest.mark.slow) for call in CALLS]
)


@pytest.mark.parametrize("step", STEPS)
@each_call
def test_a_kill_in_a_call_leaves_all_of_it_or_nothing_and_no_id_comes_again(
    call: str, step: str, kill_in: Callable[[str, str], Killed]
) -> None:
    allowed = {"before the log is written": [BEFORE], "between the log and its sync": [BEFORE, after_call(call)]}
    killed = kill_in(call, step)
    found = killed.ids(lazy=True)
    assert found in allowed.get(step, [after_call(call)])
    assert killed.ids(lazy=False) == found
    with DurableEventQueue(killed.path) as queue:
        assert queue.push(b"next").id == max([*BEFORE, *found]) + 1


@pytest.mark.parametrize("cut", [0, 1, 8, 29])  # bytes; no call has less than 30
@each_call
def test_a_log_that_was_torn_by_a_loss_of_power_has_all_of_a_call_or_nothing(
    call: str, cut: int, kill_in: Callable[[str, str], Killed]
) -> None:
    killed = kill_in(call, "between the log and its sync")
    (log,) = killed.path.glob("*.log")
    whole = {file: file.read_bytes() for file in killed.path.iterdir() if file.is_file()}
    length = len(whole[log].rstrip(b"\0"))
    for file in killed.path.iterdir():
        file.unlink()
    for file, data in whole.items():
        file.write_bytes(data if file != log else data[: length - cut])
    assert killed.ids(lazy=True) == (BEFORE if cut else after_call(call))


# --- at any moment


def live(parent: Parent, path: str, name: int, lazy: bool, empties: bool) -> None:
    """Use a queue from several threads until this process is killed, and report all of it."""
    queue = DurableEventQueue(path, lazy=lazy)
    voice = threading.Lock()  # a pipe is for one thread at a time

    def report(what: str, events: Iterable[DurableEvent[bytes]] = ()) -> None:
        with voice:
            parent.tell((what, [(event.id, event.event) for event in events]))

    if empties:
        queue.push_many([b"%d.%d" % (name, number) for number in range(3)])
        _ack_in_parts(drain(queue), queue, report)
        assert queue.is_empty
        report("empty")
        parent.wait()
    for thread in range(4):
        threading.Thread(target=_use, args=(queue, report, name, thread), daemon=True).start()
    parent.wait()


Report = Callable[..., None]
_ENOUGH = 150  # events on disk, at which a thread rather takes than pushes


def _use(queue: DurableEventQueue[bytes], report: Report, name: int, thread: int) -> None:
    dice = random.Random(name * 10 + thread)
    for number in itertools.count():
        if dice.random() < 0.6 and queue.approximate_len() < _ENOUGH:
            count = dice.choice((1, 1, 2, 20))
            events = [b"%d.%d.%d.%d" % (name, thread, number, one) + bytes(dice.randrange(500)) for one in range(count)]
            report("pushed", [queue.push(events[0])] if count == 1 else queue.push_many(events))
        else:
            popped = [event for event in (queue.pop() for _ in range(dice.randrange(1, 30))) if event is not None]
            dice.shuffle(popped)
            back = popped[: dice.randrange(4)]
            for event in back:
                queue.nack(event.id)
            _ack_in_parts(popped[len(back) :], queue, report, dice.randrange(1, 10))


def _ack_in_parts(
    events: list[DurableEvent[bytes]], queue: DurableEventQueue[bytes], report: Report, size: int = 7
) -> None:
    for start in range(0, len(events), size):
        part = events[start : start + size]
        report("acking", part)
        queue.ack(part[0].id) if len(part) == 1 else queue.ack_many([event.id for event in part])
        report("acked", part)


class Story:
    """What was ever heard or seen of a queue, over all the lives of its processes."""

    def __init__(self, path: Path, start: Start, seed: int) -> None:
        self._path = path
        self._start = start
        self._dice = random.Random(seed)
        self._known: dict[int, bytes] = {}  # every id that was ever seen, and its event
        self._pushed: set[int] = set()
        self._acking: set[int] = set()
        self._acked: set[int] = set()
        self.found = 0
        self.unreported = 0
        self.undecided = 0
        self.was_empty = 0

    def one_life(self, name: int) -> None:
        """Start a process, kill it, and check the queue that it had."""
        empties = self._dice.random() < 0.2
        child = self._start(live, str(self._path), name, self._dice.random() < 0.5, empties)
        if empties:
            while self._hear(*child.hear()) != "empty":
                pass
        else:
            for _ in range(self._dice.randrange(1, 200)):
                self._hear(*child.hear())
            time.sleep(self._dice.random() * 0.003)  # the fault: a kill at a random moment
        child.kill()
        self._hear_the_rest(child)
        self._check(empties, lazy=name % 2 == 0, pushes=self._dice.random() < 0.5)

    def _hear(self, what: str, events: list[tuple[int, bytes]]) -> str:
        for identifier, event in events:
            self._know(identifier, event)
        into = {"pushed": self._pushed, "acking": self._acking, "acked": self._acked, "empty": set[int]()}[what]
        into.update(identifier for identifier, _ in events)
        self.was_empty += what == "empty"
        return what

    def _hear_the_rest(self, child: Child) -> None:
        while True:
            try:
                report = child.hear()
            except (EOFError, OSError):  # the end, or the middle of a word
                return
            self._hear(*report)

    def _know(self, identifier: int, event: bytes) -> None:
        """Note an id and its event: it never has another."""
        assert self._known.setdefault(identifier, event) == event, f"the id {identifier} was used twice"

    def _check(self, empties: bool, *, lazy: bool, pushes: bool) -> None:
        before = max(self._known, default=-1)
        with DurableEventQueue(self._path, lazy=lazy) as queue:
            count, ready = len(queue), queue.ready_len()
            seen = [event.id for event in queue.iterate()]
            popped = drain(queue)
            probes = [queue.push(b"probe %d" % (before + 1))] if pushes else []
        for event in popped:
            self._know(event.id, event.event)
        there = [event.id for event in popped]
        assert there == sorted(set(there)) == seen
        assert count == ready == len(there)
        assert self._pushed - self._acking <= set(there), "an event is lost"
        assert not self._acked & set(there), "an acked event has come back"
        self.found += len(there)
        assert not (empties and there), "it was empty"
        self.unreported += len(set(there) - self._pushed)
        self.undecided += len(self._acking - self._acked)
        # What was found is known to be there, and what was not found is gone for good.
        self._acked |= self._acking - set(there)
        self._acking = set(self._acked)
        self._pushed |= set(there)
        for probe in probes:
            assert probe.id > max([before, *seen])
            self._hear("pushed", [(probe.id, probe.event)])


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        (8, 1),
        pytest.param(40, 1, marks=pytest.mark.slow),
        *[pytest.param(500, seed, marks=pytest.mark.chaos) for seed in (2, 3)],
    ],
)
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_over_and_over_loses_nothing_and_reuses_no_id(
    kills: int, seed: int, tmp_path: Path, start: Start
) -> None:
    story = Story(tmp_path / "queue", start, seed)
    for name in range(kills):
        story.one_life(name)
    print(f"{story.found} found, {story.unreported} unreported, {story.undecided} undecided, {story.was_empty} empty")
    assert story.was_empty >= kills // 10
    assert story.found >= kills
