"""The memory of a producer is bounded, whatever is produced and whatever its store does.

Ten times `max_buffered_bytes` is produced. The bound is seven times that setting (or a single call, if that is larger)
of resident memory: while a batch is encoded, memory holds its entries as they were produced, its columns, which double
as they grow, and its encoded bytes; the caller holds the next call; and an allocator keeps some of what was freed.
"""

from __future__ import annotations

import pytest

from tests.buffer.producer.memory_growth import (
    INPUTS,
    MAX_BYTES,
    Report,
    feed_a_store_that_fails,
    feed_a_store_that_hangs,
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
    assert report.refused > report.accepted > 0
    assert report.grown <= BOUND * (2 * MAX_BYTES if kind == "an entry larger than the limit" else MAX_BYTES)


@pytest.mark.parametrize("keep", [False, True], ids=["handles dropped", "handles kept"])
def test_a_store_that_fails_every_write_does_not_make_it_grow(start: Start, keep: bool) -> None:
    report: Report = start(feed_a_store_that_fails, "a large entry a call", keep).answer()
    assert report.grown <= BOUND * MAX_BYTES


@pytest.mark.parametrize("kind", ["a small entry a call", "lists of entries", "an entry larger than the limit"])
def test_what_is_done_is_freed(start: Start, kind: str) -> None:
    report: Report = start(feed_a_store_that_works, kind).answer()
    assert report.kept <= MAX_BYTES // 100
