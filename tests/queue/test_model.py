"""A durable queue does what a dict and two sets do, also when its process is killed and another one opens it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.queue.host import host
from tests.support.processes import Child

LARGE = 600 << 10  # of an event; two of them are more than a real window


@dataclass
class Model:
    """What a queue has to be like."""

    next_id: int = 0
    events: dict[int, bytes] = field(default_factory=dict)
    in_flight: set[int] = field(default_factory=set)

    def push(self, event: bytes) -> int:
        self.events[self.next_id] = event
        self.next_id += 1
        return self.next_id - 1

    def pop(self) -> tuple[int, bytes] | None:
        ready = self.events.keys() - self.in_flight
        if not ready:
            return None
        self.in_flight.add(min(ready))
        return min(ready), self.events[min(ready)]

    def ack(self, identifier: int) -> None:
        self.events.pop(identifier, None)
        self.in_flight.discard(identifier)

    def nack(self, identifier: int) -> str | None:
        self.in_flight.discard(identifier)
        return None if identifier in self.events else "unknown"

    def restart(self) -> None:
        self.in_flight.clear()


events = st.binary(max_size=30) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 25)
identifiers = st.integers(-1, 60)
recent = st.integers(0, 12)


class QueueMachine(RuleBasedStateMachine):
    """Does the same with a queue in another process and with a model of it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self._model = Model()
        self._lazy = self._is_narrow = True
        self._large = 0
        self._start()

    def teardown(self) -> None:
        """Leave nothing behind."""
        self._child.clear_away()
        shutil.rmtree(self._folder)

    def _start(self) -> None:
        self._child = Child(host, str(self._folder / "queue"))
        self._ask("open", self._lazy, self._is_narrow)

    def _ask(self, *call: object) -> Any:
        self._child.tell(call)
        return self._child.hear()

    @rule(event=events)
    def push(self, event: bytes) -> None:
        assert self._ask("push", event) == self._model.push(event)

    @precondition(lambda self: self._large < 6)
    @rule(byte=st.integers(0, 255))
    def push_a_large_one(self, byte: int) -> None:
        self._large += 1
        self.push(bytes([byte]) * LARGE)

    @rule(some=st.lists(events, max_size=12))
    def push_many(self, some: list[bytes]) -> None:
        assert self._ask("push_many", some) == [self._model.push(event) for event in some]

    @rule(times=st.integers(1, 6))
    def pop(self, times: int) -> None:
        for _ in range(times):
            assert self._ask("pop") == self._model.pop()

    @rule()
    def poll(self) -> None:
        assert self._ask("poll", 0) == self._model.pop()

    @rule(identifier=identifiers)
    def get(self, identifier: int) -> None:
        event = self._model.events.get(identifier)
        assert self._ask("get", identifier) == (None if event is None else (identifier, event))

    @rule(identifier=identifiers)
    def ack(self, identifier: int) -> None:
        assert self._ask("ack", identifier) is None
        self._model.ack(identifier)

    @rule(back=recent)
    def ack_one_in_flight(self, back: int) -> None:
        some = sorted(self._model.in_flight)
        if some:
            self.ack(some[back % len(some)])

    @rule(back=recent)
    def ack_one_that_is_ready(self, back: int) -> None:
        some = sorted(self._model.events.keys() - self._model.in_flight)
        if some:
            self.ack(some[back % len(some)])

    @rule(some=st.lists(identifiers, max_size=8))
    def ack_many(self, some: list[int]) -> None:
        assert self._ask("ack_many", some) is None
        for identifier in some:
            self._model.ack(identifier)

    @rule()
    def ack_all(self) -> None:
        self.ack_many(sorted(self._model.events))

    @rule(identifier=identifiers)
    def nack(self, identifier: int) -> None:
        assert self._ask("nack", identifier) == self._model.nack(identifier)

    @rule(backs=st.lists(recent, min_size=1, max_size=5))
    def nack_some_in_flight(self, backs: list[int]) -> None:
        for back in backs:
            some = sorted(self._model.in_flight)
            if some:
                self.nack(some[back % len(some)])

    @rule(some=st.lists(events, min_size=5, max_size=8), backs=st.permutations(range(5)))
    def give_back_in_any_order(self, some: list[bytes], backs: list[int]) -> None:
        self.push_many(some)
        self.pop(5)
        in_flight = sorted(self._model.in_flight)
        for back in backs:
            self.nack(in_flight[back])
        self.pop(5)

    @rule()
    def pop_all(self) -> None:
        while (event := self._model.pop()) is not None:
            assert self._ask("pop") == event
        assert self._ask("pop") is None

    @rule()
    def iterate(self) -> None:
        assert self._ask("iterate") == sorted(self._model.events.items())

    @rule(lazy=st.booleans(), is_narrow=st.booleans())
    def close_and_open(self, lazy: bool, is_narrow: bool) -> None:
        self._ask("close")
        self._lazy, self._is_narrow = lazy, is_narrow
        self._ask("open", lazy, is_narrow)
        self._model.restart()

    @rule(lazy=st.booleans(), is_narrow=st.booleans())
    def kill_and_open(self, lazy: bool, is_narrow: bool) -> None:
        self._kill(lazy, is_narrow)
        self.iterate()

    def _kill(self, lazy: bool, is_narrow: bool) -> None:
        self._child.kill()
        self._child.clear_away()
        self._lazy, self._is_narrow = lazy, is_narrow
        self._start()
        self._model.restart()

    @rule(some=st.lists(events, min_size=1, max_size=12), lazy=st.booleans())
    def kill_during_a_push(self, some: list[bytes], lazy: bool) -> None:
        self._child.tell(("push_many", some))
        self._kill(lazy, self._is_narrow)
        # It has happened or not, as a whole.
        if self._ask("get", self._model.next_id) is not None:
            for event in some:
                self._model.push(event)
        self.iterate()

    @rule(some=st.lists(identifiers, min_size=1, max_size=12), lazy=st.booleans())
    def kill_during_an_ack(self, some: list[int], lazy: bool) -> None:
        acked = [one for one in some if one in self._model.events]
        self._child.tell(("ack_many", some))
        self._kill(lazy, self._is_narrow)
        if acked and self._ask("get", acked[0]) is None:
            for identifier in acked:
                self._model.ack(identifier)
        self.iterate()

    @invariant()
    def counts_are_right(self) -> None:
        count = len(self._model.events)
        assert self._ask("state") == (count, count - len(self._model.in_flight), count == 0, count)


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.parametrize(("examples", "steps"), [(4, 25), pytest.param(15, 40, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)  # to make a failure small takes minutes
def test_a_queue_is_like_its_model(examples: int, steps: int) -> None:
    run(examples, steps, derandomize=True)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_queue_is_like_its_model_in_many_more_runs() -> None:
    run(400, 80, derandomize=False)
