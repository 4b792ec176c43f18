"""Calls that wait for free space: first come, first served, large ones too; when there is space, all go on."""

from __future__ import annotations

import asyncio
import math

import pytest

from penstock import ObjectStore
from penstock.errors import BackpressureTimeout
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.support.buffer_contents import entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Bell, Gate


@pytest.mark.parametrize("timeout", [None, PATIENCE, 1e300, math.inf])
def test_a_blocked_call_goes_on_when_there_is_space(
    memory: ObjectStore,
    hanging: HookedStore,
    gate: Gate,
    open_producer: OpenProducer,
    in_line: Bell,
    timeout: float | None,
) -> None:
    producer = open_producer(hanging, max_buffered_inputs=1)
    producer.produce(b"0")
    blocked = Background(lambda: producer.produce(b"1", timeout=timeout))
    in_line.wait()
    gate.open()
    blocked.result()
    producer.flush()
    assert entries(memory) == [b"0", b"1"]


def test_a_blocked_call_does_not_wait_for_the_flush_interval(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, max_buffered_inputs=2)  # its batches would end in an hour
    for number in range(10):
        producer.produce(b"%d" % number, timeout=PATIENCE)
    producer.flush()
    assert entries(store) == [b"%d" % number for number in range(10)]


def test_a_call_larger_than_the_limit_passes_when_nothing_else_waits(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(store, max_buffered_bytes=10)
    large = b"x" * 1000
    producer.produce(large, timeout=0)
    producer.flush()
    assert entries(store) == [large]


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "under way"])
def test_a_call_larger_than_the_limit_does_not_pass_beside_another(
    hanging: HookedStore, open_producer: OpenProducer, sealed: bool
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=10, flush_size_bytes=1 if sealed else 100)
    producer.produce(b"x", timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x" * 11, timeout=0)


def test_beside_a_call_larger_than_the_limit_nothing_passes(hanging: HookedStore, open_producer: OpenProducer) -> None:
    producer = open_producer(hanging, max_buffered_bytes=10)
    producer.produce(b"x" * 1000, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"", timeout=0)


def test_a_large_call_is_not_starved_by_small_ones_behind_it(
    memory: ObjectStore, hanging: HookedStore, gate: Gate, open_producer: OpenProducer, in_line: Bell
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=100)
    producer.produce(b"first")
    large = Background(lambda: producer.produce(b"x" * 1000))
    in_line.wait()
    for _ in range(3):
        with pytest.raises(BackpressureTimeout):
            producer.produce(b"small", timeout=0)  # there is space for it, but it is not its turn
    gate.open()
    large.result()
    producer.produce(b"last", timeout=PATIENCE)
    producer.flush()
    assert entries(memory) == [b"first", b"x" * 1000, b"last"]


def test_small_calls_go_on_when_the_large_one_before_them_gave_up(
    memory: ObjectStore, hanging: HookedStore, gate: Gate, open_producer: OpenProducer
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=100)
    producer.produce(b"first")
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x" * 1000, timeout=0)
    producer.produce(b"small", timeout=0)
    gate.open()
    producer.flush()
    assert entries(memory) == [b"first", b"small"]


def test_one_that_waits_behind_goes_on_when_the_large_one_before_it_gives_up(
    memory: ObjectStore, hanging: HookedStore, open_producer: OpenProducer, in_line: Bell
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=100)
    producer.produce(b"first")
    large = Background(lambda: producer.produce(b"x" * 1000, timeout=0.2))
    in_line.wait()
    small = Background(lambda: producer.produce(b"small"))
    in_line.wait()
    with pytest.raises(BackpressureTimeout):
        large.result()
    small.result()  # while the store still hangs: only the large one was before it


def test_calls_that_wait_are_served_in_the_order_they_came(
    memory: ObjectStore, hanging: HookedStore, gate: Gate, open_producer: OpenProducer, in_line: Bell
) -> None:
    producer = open_producer(hanging, max_buffered_inputs=1)
    producer.produce(b"0")
    blocked = []
    for number in range(1, 8):
        blocked.append(Background(lambda given=b"%d" % number: producer.produce(given)))  # type: ignore[misc]
        in_line.wait()
    gate.open()
    for call in blocked:
        call.result()
    producer.flush()
    assert entries(memory) == [b"%d" % number for number in range(8)]


def test_of_those_in_line_no_more_are_served_than_there_is_space_for(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, in_line: Bell
) -> None:
    store, first, second = HookedStore(memory), new_gate(), new_gate()
    store.before("write data", first, times=1)
    store.before("write data", second, skip=1)
    producer = open_producer(store, max_buffered_inputs=1)
    producer.produce(b"0")
    served = Background(lambda: producer.produce(b"1"))
    in_line.wait()
    still_in_line = Background(lambda: producer.produce(b"2"))
    in_line.wait()
    first.open()
    served.result()
    assert not still_in_line.has_ended_within(A_WHILE)
    second.wait_for_arrival()  # what was served is under way, because a call waits


def test_when_the_store_is_back_everything_arrives_in_order_and_once(
    store: ObjectStore, open_producer: OpenProducer, gate: Gate
) -> None:
    hooked = HookedStore(store)
    hooked.before("write data", gate)
    producer = open_producer(hooked, max_buffered_inputs=5, max_buffered_bytes=50)

    refusals = Bell()

    def feed() -> list[bytes]:
        accepted = []
        for number in range(60):
            given = b"%d" % number * (1 + number % 9)
            try:
                producer.produce(given, timeout=0.001 if number < 20 else PATIENCE)
            except BackpressureTimeout:
                refusals()
                continue
            accepted.append(given)
        return accepted

    feeding = Background(feed)
    refusals.wait(times=10)
    gate.open()
    accepted = feeding.result()
    producer.flush()
    assert entries(store) == accepted


def test_a_timeout_holds_for_calls_that_are_not_first_in_line_too(
    hanging: HookedStore, open_producer: OpenProducer, in_line: Bell
) -> None:
    producer = open_producer(hanging, max_buffered_inputs=1)
    producer.produce(b"0")
    first = Background(lambda: producer.produce(b"first in line", timeout=PATIENCE))
    in_line.wait()
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"second in line", timeout=0.01)
    assert not first.has_ended_within(0)


def test_calls_that_all_fit_again_share_a_batch(hanging: HookedStore, gate: Gate, open_producer: OpenProducer) -> None:
    """Else, of callers that never pause, each call has a batch of its own from the first wait on."""
    producer = open_producer(hanging, max_buffered_inputs=20)

    async def main() -> None:
        for _ in range(20):
            await producer.produce_async(b"before", timeout=0)
        waiting = [asyncio.ensure_future(producer.produce_async(b"behind")) for _ in range(16)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        gate.open()
        handles = await asyncio.gather(*waiting)
        more = [await producer.produce_async(b"later", timeout=0) for _ in range(4)]
        await producer.flush_async()
        assert len({(await handle).sequence for handle in handles + more}) == 1

    asyncio.run(main())
