"""Buffers of this process, and receivers on them that are closed when a test is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from penstock import Consumer, ObjectStore, open_store
from penstock.engine import BufferReceiver
from tests.support.filled_buffers import no_gc
from tests.support.waiting import Gate


class Open(Protocol):
    """Makes a receiver that is closed when the test is over, on a consumer without a collector."""

    def __call__(self, store: ObjectStore, **more: Any) -> BufferReceiver: ...


@pytest.fixture
def receive() -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(store: ObjectStore, **more: Any) -> BufferReceiver:
            receiver = BufferReceiver(Consumer(store, no_gc()), **more)
            opened.callback(receiver.close)
            return receiver

        yield open_one


@pytest.fixture
def memory(fresh_name: str) -> ObjectStore:
    return open_store(f"memory://{fresh_name}")


@pytest.fixture
def gate(receive: Open) -> Iterator[Gate]:
    """A gate that is open when the test is over, and so before its receivers are closed."""
    gate = Gate()
    yield gate
    gate.open()
