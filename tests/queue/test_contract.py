"""One contract for both modes of a durable queue, on a real RocksDB."""

from __future__ import annotations

import os
import stat
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from penstock import DurableEvent, DurableEventQueue
from penstock.errors import Closed, CorruptData, CorruptEvent, IdOverflow, InvalidInput, StorageError, UnknownEvent
from penstock.queue import MsgspecCodec
from tests.support.codecs import CountingCodec, RefusingCodec, StrictCodec
from tests.support.processes import PATIENCE
from tests.support.queue_folder import KIB, LAST, Place, begin_at, ids_of, key, pop_ids
from tests.support.waiting import Background, wait_for_waiting_threads

LARGE = 300 * KIB
"""Of such events, a lazy queue reads four ahead."""


def push_large(queue: DurableEventQueue[bytes], count: int) -> None:
    queue.push_many(bytes([number]) * LARGE for number in range(count))


# Push


def test_push_returns_the_event_with_its_id_and_ids_grow_by_one_from_0(queue: DurableEventQueue[bytes]) -> None:
    assert [queue.push(b"x") for _ in range(3)] == [DurableEvent(number, b"x") for number in range(3)]


@pytest.mark.parametrize("event", [b"", b"\0", bytes(range(256)), b"x" * (2 << 20)], ids=["empty", "0", "all", "2 MiB"])
def test_an_event_comes_out_as_it_was_pushed(queue: DurableEventQueue[bytes], event: bytes) -> None:
    queue.push(event)
    assert queue.pop() == DurableEvent(0, event)


def test_push_many_takes_any_iterable_and_gives_ids_in_order(queue: DurableEventQueue[bytes]) -> None:
    assert queue.push_many([]) == []
    queue.push(b"before")
    assert queue.push_many(iter([b"a", b"b"])) == [DurableEvent(1, b"a"), DurableEvent(2, b"b")]
    assert pop_ids(queue) == [0, 1, 2]


def test_an_event_that_cannot_be_encoded_is_refused_with_all_of_its_call_and_uses_no_id(place: Place) -> None:
    with place.open(codec=StrictCodec()) as queue:
        with pytest.raises(InvalidInput, match=r"event 2 of these .*nothing was pushed.*no such thing"):
            queue.push_many([b"a", b"b", b"bad", b"c"])
        with pytest.raises(InvalidInput, match=r"nothing was pushed: RuntimeError: no such thing"):
            queue.push(b"bad")
        assert queue.push(b"next").id == 0
    assert place.ids() == [0]


def test_push_many_of_an_iterable_that_fails_pushes_none(queue: DurableEventQueue[bytes]) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise LookupError

    with pytest.raises(LookupError):
        queue.push_many(failing())
    assert len(queue) == 0


@pytest.mark.parametrize("event", ["text", None, 3, bytearray(b"x"), memoryview(b"x")])
def test_an_event_that_is_not_bytes_is_refused_without_a_codec(queue: DurableEventQueue[bytes], event: object) -> None:
    with pytest.raises(InvalidInput, match=f"an event is bytes unless .* not {type(event).__name__}"):
        queue.push(cast("bytes", event))
    assert len(queue) == 0


# Get


@pytest.mark.parametrize("state", ["ready", "in flight", "given back"])
def test_get_finds_an_event_in_every_state_and_does_not_take_it(queue: DurableEventQueue[bytes], state: str) -> None:
    queue.push(b"x")
    if state != "ready":
        queue.pop()
    if state == "given back":
        queue.nack(0)
    assert queue.get(0) == DurableEvent(0, b"x")
    assert pop_ids(queue) == ([] if state == "in flight" else [0])


@pytest.mark.parametrize("identifier", [-1, 0, 2, LAST, LAST + 1])
def test_get_of_an_id_that_is_acked_or_was_never_given_is_none(
    queue: DurableEventQueue[bytes], identifier: int
) -> None:
    queue.push_many([b"x", b"y"])
    queue.ack(0)
    assert queue.get(identifier) is None


# Pop and poll


def test_pop_takes_the_smallest_id_first_and_no_event_twice(place: Place) -> None:
    with place.open() as queue:
        assert queue.pop() is None
        queue.push_many([b"a", b"b"])
        assert queue.pop() == DurableEvent(0, b"a")
        queue.push(b"c")
        assert [queue.pop(), queue.pop(), queue.pop()] == [DurableEvent(1, b"b"), DurableEvent(2, b"c"), None]
    assert place.ids() == [0, 1, 2]


def test_more_events_than_are_read_ahead_come_in_order_with_their_own_bytes(queue: DurableEventQueue[bytes]) -> None:
    push_large(queue, 8)
    assert queue.pop() == DurableEvent(0, bytes(LARGE))
    push_large(queue, 2)
    popped = list(iter(queue.pop, None))
    assert [event.id for event in popped] == list(range(1, 10))
    assert all(event.event == bytes([event.id % 8]) * LARGE for event in popped)


@pytest.mark.parametrize("timeout", [0, 0.001, None])
def test_poll_takes_what_is_ready_at_once(queue: DurableEventQueue[bytes], timeout: float | None) -> None:
    queue.push_many([b"a", b"b"])
    assert queue.poll(timeout) == DurableEvent(0, b"a")
    assert queue.ready_len() == 1


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_poll_of_an_empty_queue_is_none_when_the_time_is_over(queue: DurableEventQueue[bytes], timeout: float) -> None:
    assert queue.poll(timeout) is None


def test_poll_waits_a_tenth_of_a_second_by_default(queue: DurableEventQueue[bytes]) -> None:
    start = time.monotonic()
    assert queue.poll() is None
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("timeout", [None, PATIENCE, 1e300])
@pytest.mark.parametrize("wakes", ["push", "nack"])
def test_a_push_or_a_nack_wakes_a_poll(queue: DurableEventQueue[bytes], timeout: float | None, wakes: str) -> None:
    if wakes == "nack":
        queue.push(b"x")
        queue.pop()
    polling = Background(queue.poll, timeout)
    wait_for_waiting_threads()
    if wakes == "nack":
        queue.nack(0)
    else:
        queue.push(b"x")
    assert polling.result() == DurableEvent(0, b"x")


def test_a_push_many_wakes_as_many_polls(queue: DurableEventQueue[bytes]) -> None:
    polling = [Background(lambda: queue.poll(None)) for _ in range(3)]
    wait_for_waiting_threads(3)
    queue.push_many([b"a", b"b", b"c"])
    assert sorted(cast("DurableEvent[bytes]", one.result()).id for one in polling) == [0, 1, 2]


# Ack


def test_acks_delete_from_disk(place: Place) -> None:
    with place.open() as queue:
        queue.push_many([b"a", b"b", b"c", b"d"])
        queue.ack(0)
        queue.ack_many(iter([1, 3]))
    assert place.ids() == [2]


@pytest.mark.parametrize("ids", [[], [-1], [7], [LAST], [1 << 70], [0], [0, 0, 7]])
def test_acks_of_what_is_not_on_disk_succeed(queue: DurableEventQueue[bytes], ids: list[int]) -> None:
    queue.push_many([b"a", b"b"])
    queue.ack(0)
    queue.ack_many(ids)
    for identifier in ids:
        queue.ack(identifier)
    assert len(queue) == 1


def test_one_ack_many_takes_ids_in_every_state_and_counts_each_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"acked", b"in flight", b"given back", b"ready", b"stays"])
    queue.ack(0)
    for _ in range(2):
        queue.pop()
    queue.nack(2)
    queue.ack_many([0, 1, 2, 3, 99, 1, 3])
    assert (len(queue), queue.ready_len(), ids_of(queue), pop_ids(queue)) == (1, 1, [4], [4])


def test_an_ack_of_an_id_that_is_not_given_yet_does_not_hide_the_later_event(queue: DurableEventQueue[bytes]) -> None:
    queue.ack(0)
    queue.push(b"x")
    assert pop_ids(queue) == [0]


@pytest.mark.parametrize("acked", [0, 3, 4, 7], ids=lambda number: f"event {number}")
@pytest.mark.parametrize("state", ["before a pop", "after a pop", "after a reopen"])
def test_a_ready_event_that_was_acked_is_not_handed_out(place: Place, acked: int, state: str) -> None:
    """Inside the 1 MiB that is read ahead, at its edge, and beyond."""
    queue = place.open()
    push_large(queue, 8)
    popped = [event.id for event in [queue.pop()] if event is not None] if state == "after a pop" else []
    if state == "after a reopen":
        queue.close()
        queue = place.open()
    queue.ack(acked)
    assert popped + pop_ids(queue) == [one for one in range(8) if one != acked or one in popped]


def test_events_behind_a_whole_window_of_acked_ones_are_handed_out(queue: DurableEventQueue[bytes]) -> None:
    push_large(queue, 8)
    queue.ack_many(range(1, 7))
    assert pop_ids(queue) == [0, 7]


def test_an_event_that_was_given_back_and_acked_is_not_handed_out(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    queue.pop()
    queue.nack(0)
    queue.ack_many([0, 1])
    assert queue.pop() is None
    assert queue.push(b"c").id == 2
    assert pop_ids(queue) == [2]


# Nack


def test_nacked_events_come_before_every_younger_one_whatever_the_order_of_the_nacks(
    queue: DurableEventQueue[bytes],
) -> None:
    queue.push_many([b"x"] * 6)
    for _ in range(4):
        queue.pop()
    for identifier in (2, 0, 3):
        queue.nack(identifier)
    assert pop_ids(queue) == [0, 2, 3, 4, 5]


def test_a_nack_goes_before_what_was_nacked_and_popped_since(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"x"] * 3)
    pop_ids(queue)
    queue.nack(2)
    queue.nack(1)
    assert cast("DurableEvent[bytes]", queue.pop()).id == 1
    queue.nack(0)
    assert pop_ids(queue) == [0, 2]


def test_an_event_can_be_nacked_again_and_again(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"x", b"y"])
    for _ in range(5):
        assert queue.pop() == DurableEvent(0, b"x")
        queue.nack(0)
    assert queue.ready_len() == 2


def test_a_nack_of_a_ready_event_does_nothing(queue: DurableEventQueue[bytes]) -> None:
    """Of one that was given back already, of one that was never popped, and of one beyond what is read ahead."""
    push_large(queue, 8)
    queue.pop()
    for identifier in (0, 0, 2, 7):
        queue.nack(identifier)
    assert queue.ready_len() == 8
    assert pop_ids(queue) == list(range(8))


@pytest.mark.parametrize("identifier", [-1, 2, LAST, 1 << 70])
def test_a_nack_of_an_id_that_was_never_given_is_unknown(queue: DurableEventQueue[bytes], identifier: int) -> None:
    queue.push_many([b"x", b"y"])
    with pytest.raises(UnknownEvent, match=f"event {identifier} "):
        queue.nack(identifier)


@pytest.mark.parametrize("is_in_flight", [True, False], ids=["in flight", "ready"])
def test_a_nack_of_an_acked_event_is_unknown(queue: DurableEventQueue[bytes], is_in_flight: bool) -> None:
    queue.push(b"x")
    if is_in_flight:
        queue.pop()
    queue.ack(0)
    with pytest.raises(UnknownEvent, match="event 0 "):
        queue.nack(0)
    assert queue.pop() is None


# Counting


@pytest.mark.parametrize(
    ("step", "on_disk", "ready"),
    [
        ("push", 3, 3),
        ("pop", 3, 2),
        ("pop all", 3, 0),
        ("nack", 3, 3),
        ("ack of one in flight", 2, 2),
        ("ack of one that is ready", 2, 2),
        ("ack all", 0, 0),
    ],
)
def test_lengths_count_what_is_on_disk_and_what_is_ready(
    queue: DurableEventQueue[bytes], step: str, on_disk: int, ready: int
) -> None:
    queue.push_many([b"a", b"b", b"c"])
    match step:
        case "pop":
            queue.pop()
        case "pop all":
            pop_ids(queue)
        case "nack":
            queue.pop()
            queue.nack(0)
        case "ack of one in flight":
            queue.pop()
            queue.ack(0)
        case "ack of one that is ready":
            queue.ack(1)
        case "ack all":
            queue.ack_many([0, 1, 2])
    assert (len(queue), queue.approximate_len(), queue.ready_len()) == (on_disk, on_disk, ready)
    assert queue.is_empty == (on_disk == 0)


def test_a_new_queue_is_empty(queue: DurableEventQueue[bytes]) -> None:
    assert (len(queue), queue.ready_len(), queue.approximate_len(), queue.is_empty) == (0, 0, 0, True)


# Iterate


def test_iterate_gives_all_that_is_not_acked_in_order_in_any_state_and_takes_nothing(
    queue: DurableEventQueue[bytes],
) -> None:
    queue.push_many([b"given back", b"in flight", b"acked", b"ready"])
    queue.pop()
    queue.pop()
    queue.nack(0)
    queue.ack(2)
    assert list(queue.iterate()) == [
        DurableEvent(0, b"given back"),
        DurableEvent(1, b"in flight"),
        DurableEvent(3, b"ready"),
    ]
    assert pop_ids(queue) == [0, 3]


@pytest.mark.parametrize("acked", [1, 4, 7, 8], ids=lambda number: f"event {number}")
def test_what_is_acked_meanwhile_does_not_come(queue: DurableEventQueue[bytes], acked: int) -> None:
    push_large(queue, 8)
    events = queue.iterate()
    next(events)
    queue.ack(acked)
    assert [found.id for found in events] == [one for one in range(1, 8) if one != acked]


def test_what_is_popped_and_nacked_meanwhile_comes(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b", b"c"])
    events = queue.iterate()
    queue.pop()
    queue.nack(0)
    queue.pop()
    assert [found.id for found in events] == [0, 1, 2]


def test_what_is_pushed_meanwhile_does_not_come_and_an_iterator_that_is_over_stays_over(
    queue: DurableEventQueue[bytes],
) -> None:
    queue.push(b"now")
    events = queue.iterate()
    queue.push(b"later")
    assert [found.event for found in events] == [b"now"]
    queue.push(b"still later")
    assert list(events) == []


def test_iterators_do_not_disturb_each_other(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    assert [(one.id, other.id) for one, other in zip(queue.iterate(), queue.iterate(), strict=True)] == [(0, 0), (1, 1)]


# Close


USES: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "push": lambda queue: queue.push(b"x"),
    "push_many": lambda queue: queue.push_many([b"x"]),
    "push_many of nothing": lambda queue: queue.push_many([]),
    "get": lambda queue: queue.get(0),
    "pop": lambda queue: queue.pop(),
    "poll": lambda queue: queue.poll(),
    "ack": lambda queue: queue.ack(0),
    "ack_many of nothing": lambda queue: queue.ack_many([]),
    "nack": lambda queue: queue.nack(0),
    "len": len,
    "is_empty": lambda queue: queue.is_empty,
    "ready_len": lambda queue: queue.ready_len(),
    "approximate_len": lambda queue: queue.approximate_len(),
    "iterate": lambda queue: queue.iterate(),
    "oldest_age": lambda queue: queue.oldest_age(),
    "corrupt_keys": lambda queue: queue.corrupt_keys(),
    "with": lambda queue: queue.__enter__(),
}


def test_every_call_on_a_closed_queue_raises_closed(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    events = queue.iterate()
    next(events)
    queue.close()
    for use in USES.values():
        with pytest.raises(Closed, match="is closed"):
            use(queue)
    with pytest.raises(Closed):
        next(events)


def test_a_second_close_does_nothing_to_a_queue_that_was_opened_since(place: Place) -> None:
    first = place.open()
    first.close()
    second = place.open()
    first.close()
    assert second.push(b"x").id == 0


def test_a_queue_is_closed_at_the_end_of_a_with_also_by_an_error(place: Place) -> None:
    with place.open() as queue:
        pass
    with pytest.raises(Closed):
        queue.pop()
    with pytest.raises(LookupError), place.open() as queue:
        raise LookupError
    with pytest.raises(Closed):
        queue.pop()


def test_a_poll_that_waits_while_another_thread_closes_gets_closed(queue: DurableEventQueue[bytes]) -> None:
    polling = [Background(lambda: queue.poll(None)) for _ in range(2)]
    wait_for_waiting_threads(2)
    queue.close()
    for one in polling:
        with pytest.raises(Closed):
            one.result()


# Open again


def switched(place: Place) -> Place:
    return Place(place.path, lazy=not place.lazy)


@pytest.mark.parametrize("then", [lambda place: place, switched], ids=["the same mode", "the other mode"])
def test_everything_that_was_not_acked_is_ready_again_in_order(place: Place, then: Callable[[Place], Place]) -> None:
    with place.open() as queue:
        queue.push_many([b"ready", b"acked", b"in flight", b"given back", b"last"])
        for _ in range(4):
            queue.pop()
        queue.ack(1)
        queue.nack(3)
    with then(place).open() as queue:
        assert (len(queue), queue.ready_len()) == (4, 4)
        assert [event.event for event in iter(queue.pop, None)] == [b"ready", b"in flight", b"given back", b"last"]
        assert queue.push(b"next").id == 5


@pytest.mark.parametrize("then", [lambda place: place, switched], ids=["the same mode", "the other mode"])
@pytest.mark.parametrize("way", ["one by one", "many"])
def test_ids_are_not_used_again_after_everything_was_acked(
    place: Place, way: str, then: Callable[[Place], Place]
) -> None:
    with place.open() as queue:
        if way == "many":
            queue.push_many([b"x"] * 3)
            queue.ack_many([0, 1, 2])
        else:
            for _ in range(3):
                queue.ack(queue.push(b"x").id)
    then(place).open().close()
    with then(place).open() as queue:
        assert queue.push(b"y").id == 3
        queue.ack(3)
    with then(place).open() as queue:
        assert queue.push(b"z").id == 4


# The last id


@pytest.fixture
def at_the_end(place: Place) -> Place:
    """A queue with one id that it can still give, before the last, which is never given."""
    begin_at(place.path, LAST - 2)
    return place.holding(b"old")


def test_a_push_over_the_last_id_overflows_and_writes_nothing(at_the_end: Place) -> None:
    with at_the_end.open() as queue:
        with pytest.raises(IdOverflow):
            queue.push_many([b"x", b"y"])
        assert queue.push(b"x") == DurableEvent(LAST - 1, b"x")
        for _ in range(2):
            with pytest.raises(IdOverflow, match="nothing was pushed"):
                queue.push(b"y")
        assert len(queue) == 2
    assert at_the_end.ids() == [LAST - 2, LAST - 1]


def test_a_queue_that_has_used_its_ids_can_be_drained_and_stays_so(at_the_end: Place) -> None:
    with at_the_end.open() as queue:
        queue.push(b"x")
        popped = pop_ids(queue)
        assert popped == [LAST - 2, LAST - 1]
        queue.ack_many(popped)
        assert queue.is_empty
    with at_the_end.open() as queue, pytest.raises(IdOverflow):
        queue.push(b"y")


def test_an_event_under_the_very_last_id_which_is_never_given_is_damage(place: Place) -> None:
    place.open().close()
    place.plant(key(LAST), b"planted")
    with pytest.raises(CorruptData, match="at least"):
        place.open()


# Codecs


def test_an_event_is_encoded_once_and_decoded_only_when_it_is_popped(place: Place) -> None:
    """Not by opening, lengths, acks or nacks."""
    codec = CountingCodec()
    with place.open(codec=codec) as queue:
        queue.push_many(["x" * LARGE] * 8)
    assert codec.encoded == 8
    queue = place.open(codec=codec)
    assert codec.decoded == 0
    queue.pop()
    queue.pop()
    queue.nack(0)
    queue.nack(6)
    queue.ack(0)
    queue.ack_many([1, 2, 7])
    assert (len(queue), queue.ready_len(), queue.approximate_len(), queue.is_empty) == (4, 4, 4, False)
    assert codec.decoded == 2


def test_a_codec_makes_events_of_any_type(place: Place) -> None:
    with place.open(codec=CountingCodec()) as queue:
        assert queue.push("ä") == queue.pop() == queue.get(0) == next(queue.iterate()) == DurableEvent(0, "ä")


@pytest.mark.parametrize("encoded", [None, "text", bytearray(b"x"), 3])
def test_a_codec_that_does_not_make_bytes_is_refused(place: Place, encoded: object) -> None:
    class Wrong(RefusingCodec):
        def encode(self, event: bytes, /) -> bytes:
            return cast("bytes", encoded)

    queue = place.open(codec=Wrong())
    with pytest.raises(
        InvalidInput, match=f"the codec made {type(encoded).__name__} of this event, and must make bytes"
    ):
        queue.push(b"x")
    with pytest.raises(InvalidInput, match=f"made {type(encoded).__name__} of event 0 of these"):
        queue.push_many([b"x"])
    assert len(queue) == 0


@pytest.mark.parametrize("missing", ["encode", "decode"])
def test_what_is_no_codec_is_refused(place: Place, missing: str) -> None:
    half = type("Half", (), {name: repr for name in ("encode", "decode") if name != missing})()
    with pytest.raises(InvalidInput, match=f"codec must have encode and decode, and Half has no {missing}"):
        place.open(codec=half)
    assert not place.path.exists()


class Click(msgspec.Struct):
    page: str
    times: int = 1


@pytest.fixture(params=["msgpack", "json"])
def clicks(request: pytest.FixtureRequest) -> MsgspecCodec[Click]:
    return MsgspecCodec(Click, form=request.param)


def test_a_struct_comes_out_as_it_was_pushed_and_what_is_none_is_refused(
    place: Place, clicks: MsgspecCodec[Click]
) -> None:
    with place.open(codec=clicks) as queue:
        with pytest.raises(InvalidInput, match="times"):
            queue.push(Click("/home", cast("int", "three")))
        with pytest.raises(InvalidInput, match="nothing was pushed"):
            queue.push(object())
        queue.push(Click("/home", 3))
    assert place.open(codec=clicks).pop() == DurableEvent(0, Click("/home", 3))


@pytest.mark.parametrize(("form", "data"), [("json", b'{"page":"/","times":1}'), ("msgpack", b"\x82\xa4page\xa1/")])
def test_the_forms_of_msgspec_are_what_they_say(form: Any, data: bytes) -> None:
    codec: MsgspecCodec[Click] = MsgspecCodec(Click, form=form)
    assert codec.encode(Click("/")).startswith(data)


def test_a_form_or_a_type_that_msgspec_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="form must be msgpack or json, not 'xml'"):
        MsgspecCodec(Click, form=cast("Any", "xml"))
    with pytest.raises(InvalidInput, match="msgspec has no form for"):
        MsgspecCodec(dict[Click, 3])  # type: ignore[valid-type]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("take", ["pop", "poll"])
@pytest.mark.parametrize("state", ["ready", "given back"])
def test_an_interrupt_while_decoding_leaves_the_event_ready(
    place: Place, interrupt: type[BaseException], take: str, state: str
) -> None:
    codec = RefusingCodec(interrupt)
    codec.refuses = False
    queue = place.holding(b"bad", b"x").open(codec=codec)
    if state == "given back":
        queue.pop()
        queue.nack(0)
    codec.refuses = True
    with pytest.raises(interrupt):
        getattr(queue, take)()
    codec.refuses = False
    assert queue.ready_len() == 2
    assert pop_ids(queue) == [0, 1]


def test_an_interrupt_while_decoding_leaves_an_iterator_where_it_was(place: Place) -> None:
    codec = RefusingCodec(KeyboardInterrupt)
    queue = place.holding(b"bad", b"x").open(codec=codec)
    events = queue.iterate()
    with pytest.raises(KeyboardInterrupt):
        next(events)
    codec.refuses = False
    assert [found.id for found in events] == [0, 1]


def test_a_value_that_is_refused_as_a_stop_of_iteration_does_not_end_an_iterator(place: Place) -> None:
    queue = place.holding(b"bad", b"x").open(codec=RefusingCodec(StopIteration))
    with pytest.raises(CorruptEvent, match="event 0"):
        list(queue.iterate())


# What cannot be right


@pytest.mark.parametrize("identifier", [None, "0", 0.0, True])
@pytest.mark.parametrize("method", ["get", "ack", "nack"])
def test_what_is_no_id_is_refused(queue: DurableEventQueue[bytes], method: str, identifier: object) -> None:
    queue.push(b"x")
    with pytest.raises(InvalidInput, match=r"an event id is an integer, not .*"):
        getattr(queue, method)(identifier)


def test_an_ack_many_with_something_that_is_no_id_acks_none(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    with pytest.raises(InvalidInput, match="an event id is an integer, not '1'"):
        queue.ack_many([0, cast("int", "1")])
    assert len(queue) == 2


@pytest.mark.parametrize(
    "timeout", [-1, -0.001, float("nan"), float("inf"), "1", True, pytest.param(10**400, id="huge")]
)
def test_a_timeout_that_cannot_be_right_is_refused(queue: DurableEventQueue[bytes], timeout: object) -> None:
    queue.push(b"x")
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds, 0 or more"):
        queue.poll(cast("float", timeout))
    assert queue.ready_len() == 1


@pytest.mark.parametrize(
    "path", ["s3://bucket/queue", "memory://queue", "gs://b/q", "https://host/queue", "", "a\0b", None, 3, b"queue"]
)
def test_a_path_that_is_not_on_this_hosts_disk_is_refused(path: object) -> None:
    with pytest.raises(InvalidInput, match="on this host's disk"):
        DurableEventQueue(cast("str", path))


@pytest.mark.parametrize("below", ["", "queue", "deep/queue"])
def test_a_path_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("not a queue")
    with pytest.raises(StorageError, match=f"a queue cannot be made in {file / below}: "):
        DurableEventQueue(file / below)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_path_may_be_text_or_a_file_url(tmp_path: Path, form: str) -> None:
    place = Place(tmp_path / "a" / "b" / "queue", lazy=True)
    with DurableEventQueue(form.format(place.path)) as queue:
        queue.push(b"x")
        assert repr(queue) == f"DurableEventQueue({str(place.path)!r})"
    assert place.ids() == [0]


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o750), (0o022, 0o750), (0o077, 0o700)])
def test_a_new_queue_can_be_entered_by_its_owners_group_at_most(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        DurableEventQueue(tmp_path / "queue").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == mode


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue").chmod(0o2775)
    DurableEventQueue(tmp_path / "queue").close()
    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == 0o2775


# What is in memory


def kept_by(work: Callable[[], object]) -> int:
    """How many bytes Python still has allocated after some work."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_what_a_lazy_queue_reads_ahead_of_small_events_takes_little_memory(tmp_path: Path) -> None:
    place = Place(tmp_path / "queue", lazy=True).holding(*[b"x"] * 50_000)
    queue = place.open()
    assert kept_by(queue.pop) < 3 << 20
    place.close()


def test_what_was_acked_without_being_taken_leaves_memory(queue: DurableEventQueue[bytes]) -> None:
    """An application that pushes, does the work itself, and acks: the queue is for the crash alone."""

    def push_and_ack() -> None:
        for number in range(300):
            queue.ack(queue.push(bytes([number % 256]) * 10 * KIB).id)

    assert kept_by(push_and_ack) < 3 * 300 * 10 * KIB // 4


def test_an_event_that_is_given_back_again_and_again_takes_no_more_memory(queue: DurableEventQueue[bytes]) -> None:
    queue.push(b"poison")

    def take_and_give_back() -> None:
        for _ in range(10_000):
            assert queue.pop() is not None
            queue.nack(0)

    assert kept_by(take_and_give_back) < 60 * KIB


def test_what_was_acked_behind_the_oldest_event_leaves_memory(queue: DurableEventQueue[bytes]) -> None:
    queue.push(b"the oldest, which is not popped")

    def push_and_ack() -> None:
        for _ in range(30):
            queue.ack_many([pushed.id for pushed in queue.push_many([bytes(1000)] * 100)])

    assert kept_by(push_and_ack) < 1500 * KIB
    assert pop_ids(queue) == [0]


def test_what_was_acked_ahead_of_its_turn_is_forgotten_when_its_turn_comes(queue: DurableEventQueue[bytes]) -> None:
    def ack_the_second_first() -> None:
        for _ in range(50):
            first, second = queue.push_many([bytes(10_000), bytes(10_000)])
            queue.ack(second.id)
            assert queue.pop() == first
            assert queue.pop() is None
            queue.ack(first.id)

    assert kept_by(ack_the_second_first) < 60 * KIB


def test_bytes_of_another_class_are_pushed_as_what_they_are(queue: DurableEventQueue[bytes]) -> None:
    class Tagged(bytes):
        pass

    queue.push(Tagged(b"x"))
    popped = queue.pop()
    assert popped is not None
    assert (type(popped.event), popped.event) == (bytes, b"x")
