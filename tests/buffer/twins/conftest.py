"""Calls of methods and of their twins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias

import pytest
import uvloop

from penstock import ObjectStore, Producer, ProducerConfig
from penstock.buffer.producer.capacity import Capacity
from tests.support.call_hooks import hooks_at
from tests.support.waiting import Bell

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on a loop."""

    def run_on_loop(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(coroutine)

    return run_on_loop


def fill(store: ObjectStore, count: int) -> None:
    """Put so many batches of one event each into a buffer."""
    with Producer(store, ProducerConfig(flush_size_bytes=1)) as producer:
        for number in range(count):
            producer.produce(f"event {number}")


@pytest.fixture
def in_line() -> Iterator[Bell]:
    """Rings when a call has to wait for space; before `call`, for a loop's thread that starts later."""
    bell = Bell()
    with hooks_at(Capacity.line_up, after=bell):
        yield bell
