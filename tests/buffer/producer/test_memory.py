"""A producer holds no more than it was told, whatever it is given and whatever its store does.

What is given is ten times the room. The bound is seven times `max_buffered_bytes` (or a single call, if that is larger)
of resident memory: while a batch is encoded it is there as its caller gave it, in columns that double as they grow, and
as it will be written; its caller has the next call in its hands; and an allocator keeps some of what it got back.
"""

from __future__ import annotations

import pytest

from tests.buffer.producer.memory_growth import (
    INPUTS,
    ROOM,
    Report,
    feed_a_store_that_hangs,
    feed_a_store_that_refuses,
    feed_a_store_that_works,
)
from tests.support.processes import Start

MANIFESTS = ["native"]

BOUND = 7


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * ("tiny" in kind or "one byte" in kind)) for kind in INPUTS]
)
def test_a_store_that_hangs_does_not_make_it_grow(start: Start, kind: str) -> None:
    report: Report = start(feed_a_store_that_hangs, kind).answer()
    assert report.refused > report.taken > 0
    assert report.grown <= BOUND * (2 * ROOM if kind == "an entry larger than the room" else ROOM)


@pytest.mark.parametrize("keep", [False, True], ids=["handles dropped", "handles kept"])
def test_a_store_that_refuses_everything_does_not_make_it_grow(start: Start, keep: bool) -> None:
    report: Report = start(feed_a_store_that_refuses, "a large entry a call", keep).answer()
    assert report.grown <= BOUND * ROOM


@pytest.mark.parametrize("kind", ["a small entry a call", "lists of entries", "an entry larger than the room"])
def test_what_is_done_is_let_go_of(start: Start, kind: str) -> None:
    report: Report = start(feed_a_store_that_works, kind).answer()
    assert report.left <= ROOM // 100
