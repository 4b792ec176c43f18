"""One contract: what holds of a method of a queue holds of its awaitable twin."""

from __future__ import annotations

import asyncio

import pytest

from penstock import DurableEvent, DurableEventQueue, EventQueue
from penstock.errors import BackpressureTimeout, Closed, CorruptEvent, InvalidInput, UnknownEvent
from tests.queue.writes import Writes
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.codecs import StrictCodec
from tests.support.processes import PATIENCE
from tests.support.queue_folder import Place, ids_of
from tests.support.twins import Twins
from tests.support.waiting import A_WHILE, Background


def events(*payloads: bytes) -> list[DurableEvent[bytes]]:
    return [DurableEvent(number, payload) for number, payload in enumerate(payloads)]


def test_events_are_pushed_polled_and_acked_in_order(call: Twins, place: Place) -> None:
    first, second, third = events(b"a", b"b", b"c")
    with call.within(place.open()) as queue:
        assert call(queue.push, b"a") == first
        assert call(queue.push_many, [b"b", b"c"]) == [second, third]
        assert call(queue.push_many, []) == []
        assert call(queue.get, 1) == second
        assert call(queue.get, 7) is None
        assert [call(queue.poll), call(queue.pop), call(queue.poll, 0), call(queue.pop)] == [first, second, third, None]
        call(queue.nack, 1)
        call(queue.ack, 0)
        call(queue.ack_many, [2, 2, 77])
        assert call(queue.poll, None) == second
    assert place.ids() == [1]


def test_many_are_polled_as_bytes(call: Twins, place: Place) -> None:
    queue = place.open()
    assert call(queue.poll_bytes, 5, timeout=0.01) == []
    call(queue.push_many, [b"a", b"bb", b"c", b"d"])
    assert call(queue.poll_bytes, 9, 3) == events(b"a", b"bb")
    assert [event.id for event in call(queue.poll_bytes, 2000)] == [2, 3]
    with pytest.raises(InvalidInput, match="max_events"):
        call(queue.poll_bytes, 0)


def test_more_are_polled_as_bytes_than_are_taken_under_one_lock(call: Twins, place: Place) -> None:
    queue = place.open()
    queue.push_many([b"x"] * 2500)
    assert [event.id for event in call(queue.poll_bytes, 2400)] == list(range(2400))


@pytest.mark.parametrize("is_many", [False, True])
def test_a_poll_waits_for_the_next_push(call: Twins, place: Place, is_many: bool) -> None:
    queue = place.open()
    polling = Background(call, queue.poll_bytes, 5, None, None) if is_many else Background(call, queue.poll, None)
    assert not polling.has_ended_within(A_WHILE)
    queue.push(b"a")
    assert polling.result() == (events(b"a") if is_many else events(b"a")[0])


def test_what_is_wrong_is_refused(call: Twins, place: Place) -> None:
    queue = place.open(codec=StrictCodec())
    for method, args, error in (
        (queue.push, (b"bad",), InvalidInput),
        (queue.push_many, (7,), InvalidInput),
        (queue.poll, (-1,), InvalidInput),
        (queue.get, ("1",), InvalidInput),
        (queue.ack, ("1",), InvalidInput),
        (queue.ack_many, (1,), InvalidInput),
        (queue.nack, (True,), InvalidInput),
        (queue.nack, (5,), UnknownEvent),
    ):
        with pytest.raises(error):
            call(method, *args)
    assert len(queue) == 0


def test_an_event_that_cannot_be_decoded_is_refused_until_it_is_skipped(call: Twins, place: Place) -> None:
    place.holding(b"bad", b"good")
    queue = place.open(codec=StrictCodec())
    for method in (queue.poll, queue.pop):
        with pytest.raises(CorruptEvent):
            call(method)
    with pytest.raises(CorruptEvent):
        call(queue.get, 0)
    assert call(queue.pop, skip_corrupt=True).id == 1


def test_a_closed_queue_refuses_and_ends_those_that_wait(call: Twins, place: Place) -> None:
    queue = place.open()
    waiting = [Background(call, queue.poll, None), Background(call, queue.poll_bytes, 5, None, None)]
    assert not any(one.has_ended_within(A_WHILE) for one in waiting)
    call(queue.close)
    call(queue.close)
    for one in waiting:
        assert isinstance(one.error(), Closed)
    for method, *args in ((queue.push, b"x"), (queue.poll,), (queue.poll_bytes, 1), (queue.ack, 0), (queue.get, 0)):
        with pytest.raises(Closed):
            call(method, *args)


def test_an_ack_that_fails_leaves_the_event_in_flight(call: Twins, place: Place, writes: Writes) -> None:
    queue = place.open()
    queue.push(b"a")
    queue.pop()
    writes.fail(error=OSError("the disk failed"))
    with pytest.raises(Exception, match="the disk failed"):
        call(queue.ack, 0)
    assert ids_of(queue) == [0]
    call(queue.ack, 0)
    assert queue.is_empty


def test_an_event_queue_waits_for_events_and_for_space(call: Twins) -> None:
    queue = EventQueue[str](maxsize=1)
    assert call(queue.poll, 0) is None
    assert call(queue.poll, 0.01) is None
    call(queue.push, "first")
    for timeout in (0, 0.01):
        with pytest.raises(BackpressureTimeout, match="was not added"):
            call(queue.push, "second", timeout)
    pushing = Background(call, queue.push, "second")
    assert not pushing.has_ended_within(A_WHILE)
    assert call(queue.poll) == "first"
    pushing.result()
    assert call(queue.poll, None) == "second"
    polling = Background(call, queue.poll, None)
    assert not polling.has_ended_within(A_WHILE)
    call(queue.push, "third")
    assert polling.result() == "third"
    for method, *args in ((queue.push, None), (queue.push, "x", -1), (queue.poll, -1)):
        with pytest.raises(InvalidInput):
            call(method, *args)


def test_a_cancelled_poll_of_many_takes_nothing(queue: DurableEventQueue[bytes]) -> None:
    async def main() -> None:
        queue.push_many([b"a", b"b", b"c"])

        async def check(outcome: Outcome[list[DurableEvent[bytes]]]) -> None:
            for event in reversed(outcome.answer or []):
                await queue.nack_async(event.id)
            found = await queue.poll_bytes_async(9, timeout=PATIENCE)
            assert found == events(b"a", b"b", b"c"), outcome
            for event in found:
                await queue.nack_async(event.id)

        assert await cancel_at_each_suspension(lambda: queue.poll_bytes_async(9, timeout=PATIENCE), check) >= 3

    asyncio.run(main())


def test_a_second_poll_goes_on_when_one_that_was_woken_is_cancelled(queue: DurableEventQueue[bytes]) -> None:

    async def main() -> None:
        waiting = [asyncio.ensure_future(queue.poll_bytes_async(1, timeout=None)) for _ in range(2)]
        await asyncio.sleep(A_WHILE)
        queue.push(b"a")  # the first is woken, and does not know yet
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        found = [] if waiting[0].cancelled() else waiting[0].result()
        assert found or await asyncio.wait_for(waiting[1], PATIENCE) == events(b"a")

    asyncio.run(main())
