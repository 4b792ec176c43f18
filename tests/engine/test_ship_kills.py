"""A shipper is killed at each step of a block, and over and over at random moments.

Every event whose push returned arrives; what arrives twice is the block that was under way at a kill, and nothing else.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, DurableEventQueue
from penstock.engine import BufferSender, QueueReceiver, ship
from penstock.queue import DurableEvent
from tests.support.processes import Child, Parent, Start

# --- at each step of a block


def stop_at(parent: Parent, owner: type, method: str, *, after: bool) -> None:
    """Have this process report that it is before or after a method, and go no further."""
    original = getattr(owner, method)

    def stopping(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs) if after else None
        parent.tell("there")
        parent.wait()
        return answer

    setattr(owner, method, stopping)


STEPS: dict[str, Callable[[Parent], None]] = {
    "after the receive": lambda parent: stop_at(parent, BufferSender, "send", after=False),
    "after the sink": lambda parent: stop_at(parent, BufferSender, "send", after=True),
    "after the ack": lambda parent: stop_at(parent, QueueReceiver, "commit", after=True),
}


def ship_to_a_step(parent: Parent, queue: str, buffer: str, step: str) -> None:
    STEPS[step](parent)
    ship(queue, buffer, until_idle=True)


def values_in(buffer: Path) -> list[bytes]:
    with Consumer(buffer) as consumer:
        return [value for batch in consumer for value in batch.entries]


@pytest.mark.parametrize(
    ("step", "in_queue", "in_buffer"),
    [
        pytest.param("after the receive", True, False, marks=pytest.mark.slow),
        ("after the sink", True, True),
        pytest.param("after the ack", False, True, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_each_step_leaves_events_in_the_queue_or_in_the_buffer(
    step: str, in_queue: bool, in_buffer: bool, tmp_path: Path, start: Start
) -> None:
    events = [b"%d" % number for number in range(100)]
    with DurableEventQueue(tmp_path / "queue") as queue:
        queue.push_many(events)
    child = start(ship_to_a_step, str(tmp_path / "queue"), str(tmp_path / "buffer"), step)
    assert child.hear() == "there"
    child.kill()
    with DurableEventQueue(tmp_path / "queue") as queue:
        assert [event.event for event in queue.iterate()] == (events if in_queue else [])
    ship(tmp_path / "queue", tmp_path / "buffer", until_idle=True)
    assert values_in(tmp_path / "buffer") == events * (in_queue + in_buffer)


# --- at any moment


def push_and_ship(parent: Parent, queue_path: str, buffer: str, life: int) -> None:
    """Push in one thread, and ship in another, until this process is killed; report what was pushed, and each block."""
    queue = DurableEventQueue(queue_path)
    pipe = threading.Lock()  # it is for one thread at a time

    def tell(what: str, events: Iterable[DurableEvent[bytes]] = ()) -> None:
        with pipe:
            parent.tell((what, {event.event: event.id for event in events}))

    commit = QueueReceiver.commit

    def reporting(receiver: QueueReceiver, tokens: Any) -> None:
        tell("in the buffer")
        commit(receiver, tokens)
        tell("acked")

    setattr(QueueReceiver, "commit", reporting)  # noqa: B010  a method is nothing to assign to, for mypy
    threading.Thread(target=ship, args=(queue, buffer), daemon=True).start()
    dice = random.Random(life)
    for number in itertools.count():
        count = dice.choice((1, 3, 40))
        events = [b"%d.%d.%d" % (life, number, one) for one in range(count)]
        tell("pushed", queue.push_many(events))


class Story:
    """What the shippers of one queue reported, one after the other, and what they wrote into the buffer."""

    def __init__(self, root: Path, start: Start, seed: int) -> None:
        self._queue, self._buffer = root / "queue", root / "buffer"
        self._start = start
        self._dice = random.Random(seed)
        self._pushed: dict[bytes, int] = {}  # every event whose push returned, and its id
        self.heard: Counter[str] = Counter()

    def one_life(self, life: int) -> None:
        """Push something in this process; start one that pushes and ships, and kill it."""
        self._push_between(life)
        child = self._start(push_and_ship, str(self._queue), str(self._buffer), life)
        last = ""
        for _ in range(self._dice.randrange(1, 60)):
            last = self._hear(*child.hear())
        if self._dice.random() < 0.5:  # a kill right after the manifest was written, or not
            while last != "in the buffer":
                last = self._hear(*child.hear())
        child.kill()
        self._hear_the_rest(child)

    def _push_between(self, life: int) -> None:
        with DurableEventQueue(self._queue) as queue:
            events = queue.push_many([b"between.%d.%d" % (life, one) for one in range(self._dice.randrange(1, 30))])
        self._hear("pushed", {event.event: event.id for event in events})

    def _hear(self, what: str, events: dict[bytes, int]) -> str:
        self.heard[what] += 1
        if what == "pushed":
            self._pushed.update(events)
        return what

    def _hear_the_rest(self, child: Child) -> None:
        while True:
            try:
                self._hear(*child.hear())
            except (EOFError, OSError):  # the end of the pipe, or the middle of a message
                return

    def end(self) -> Blocks:
        """Ship the rest, by a process that is not killed, and return what is in the buffer."""
        with DurableEventQueue(self._queue) as queue:
            ship(queue, self._buffer, until_idle=True)
            assert queue.is_empty
        blocks = Blocks(self._buffer)
        assert self._pushed.keys() <= set(blocks.order), "an event is lost"
        ids = [self._pushed[value] for value in blocks.order if value in self._pushed]
        assert ids == sorted(ids), "events came out of their order"
        return blocks


class Blocks:
    """What was shipped, block by block. Checks that a block repeats the end of what was there, and goes on from it."""

    def __init__(self, buffer: Path) -> None:
        self.order: list[bytes] = []  # every value where it first came
        self.repeats: list[int] = []  # how many values each block that repeats some repeats
        self.count = 0
        seen = set[bytes]()
        with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
            for batch in consumer:
                values = batch.entries
                repeated = sum(value in seen for value in values)
                assert values[:repeated] == self.order[len(self.order) - repeated :], "no repeat of the last block"
                self.repeats += [repeated] if repeated else []
                self.order += values[repeated:]
                seen.update(values[repeated:])
                assert len(seen) == len(self.order)
                self.count += 1


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        (10, 1),
        pytest.param(30, 1, marks=pytest.mark.slow),
        *[pytest.param(500, seed, marks=pytest.mark.chaos) for seed in (2, 3)],
    ],
)
@pytest.mark.timeout(600)
def test_a_shipper_that_is_killed_over_and_over_loses_nothing_and_repeats_at_most_a_block_for_each_kill(
    kills: int, seed: int, tmp_path: Path, start: Start
) -> None:
    story = Story(tmp_path, start, seed)
    for life in range(kills):
        story.one_life(life)
    blocks = story.end()
    print(
        f"{kills} kills, {len(blocks.order)} events in {blocks.count} blocks; "
        f"{len(blocks.repeats)} blocks came again, {sum(blocks.repeats)} events; {dict(story.heard)}"
    )
    assert len(blocks.repeats) <= kills
    assert len(blocks.repeats) >= kills // 10, "hardly any kill came between the manifest and the ack"
    assert blocks.count >= story.heard["in the buffer"], "a block that was reported is not there"
