"""Keys and values that cannot be read: each raises an error, can be skipped, and hides no event behind it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import DurableEvent, DurableEventQueue
from penstock.errors import CorruptData, CorruptEvent, StorageError
from tests.queue.samples import sample
from tests.support.codecs import RefusingCodec
from tests.support.queue_folder import LAST, Place, begin_at, key
from tests.support.waiting import Background, wait_for_waiting_threads

BAD_KEYS = {
    "empty, before all": b"",
    "too short, before all": key(0)[:7],
    "too long, between": key(1) + b"more",
    "too long, after the last": key(2) + b"\0",
    "long, after every id": b"\xff" * 9,
}
"""Of a queue with the events 0, 1 and 2."""

TAKES: dict[str, Callable[..., DurableEvent[bytes] | None]] = {
    "pop": lambda queue, **more: queue.pop(**more),
    "poll": lambda queue, **more: queue.poll(0, **more),
}


def skipped(queue: DurableEventQueue[Any]) -> float:
    return sample("penstock_queue_corrupt_skipped_total", queue)


def ids(events: Iterator[DurableEvent[bytes]]) -> list[int]:
    return [found.id for found in events]


def take_all(queue: DurableEventQueue[bytes], take: str = "pop") -> list[int]:
    """The ids of all that is ready, skipping what is corrupt."""
    return ids(iter(lambda: TAKES[take](queue, skip_corrupt=True), None))


@dataclass(frozen=True)
class BadOne:
    """A key that is no id beside the events 0 to 2, or one of their values that the codec refuses."""

    place: Place
    before: int  # how many events come before it
    behind: list[int]  # the ids of the events that come after it
    shown: str  # how errors name it

    def open(self) -> DurableEventQueue[bytes]:
        return self.place.open(codec=RefusingCodec())


@pytest.fixture(params=[*BAD_KEYS, 0, 1, 2], ids=[*BAD_KEYS, "first value", "value between", "last value"])
def bad_one(request: pytest.FixtureRequest, place: Place) -> BadOne:
    if isinstance(request.param, int):
        bad = request.param
        place.holding(*(b"bad" if number == bad else b"good" for number in range(3)))
        return BadOne(place, bad, list(range(bad + 1, 3)), f"event {bad} cannot be decoded: RuntimeError: no")
    planted = BAD_KEYS[request.param]
    place.holding(b"a", b"b", b"c").plant(planted, b"planted")
    before = sum(key(one) < planted for one in range(3))
    return BadOne(place, before, list(range(before, 3)), f"the key {planted!r} ")


@pytest.mark.parametrize("take", TAKES)
def test_a_bad_key_or_value_is_raised_in_its_place_each_time_and_can_be_skipped(bad_one: BadOne, take: str) -> None:
    queue, before = bad_one.open(), bad_one.before
    assert [TAKES[take](queue) for _ in range(before)] == [queue.get(one) for one in range(before)]
    for _ in range(3):
        with pytest.raises(CorruptEvent, match=re.escape(bad_one.shown)):
            TAKES[take](queue)
    assert queue.ready_len() == 3 - before
    assert take_all(queue, take) == bad_one.behind
    assert skipped(queue) == 1


def test_an_iterator_raises_a_bad_key_or_value_once_and_goes_on_behind_it(bad_one: BadOne) -> None:
    queue = bad_one.open()
    events = queue.iterate()
    assert [next(events).id for _ in range(bad_one.before)] == list(range(bad_one.before))
    with pytest.raises(CorruptEvent, match=re.escape(bad_one.shown)):
        next(events)
    assert ids(events) == bad_one.behind
    assert skipped(queue) == 0


def test_the_error_has_the_id_of_the_event_or_the_key_that_is_none(place: Place) -> None:
    place.holding(b"a", b"bad").plant(b"zz", b"")
    queue = place.open(codec=RefusingCodec())
    found = list[tuple[int | None, bytes | None]]()
    for _ in range(2):
        with pytest.raises(CorruptEvent) as raised:
            list(iter(queue.pop, None))
        found.append((raised.value.id, raised.value.key))
        queue.ack(1)
    assert found == [(1, None), (None, b"zz")]


def test_an_iterator_that_may_skip_goes_past_a_bad_key_or_value_and_counts_it(bad_one: BadOne) -> None:
    queue = bad_one.open()
    assert ids(queue.iterate(skip_corrupt=True)) == [*range(bad_one.before), *bad_one.behind]
    assert skipped(queue) == 1
    assert queue.ready_len() == 3


# Keys


def test_a_nack_goes_before_a_bad_key_that_comes_after_it(place: Place) -> None:
    place.holding(b"a", b"b")
    place.plant(key(0) + b"x", b"")
    queue = place.open()
    queue.pop()
    with pytest.raises(CorruptEvent):
        queue.pop()
    queue.nack(0)
    assert queue.pop() == DurableEvent(0, b"a")
    with pytest.raises(CorruptEvent):
        queue.pop()


@pytest.fixture
def with_all_bad_keys(place: Place) -> Place:
    """The events 0, 1 and 2, and every key that is no id."""
    place.holding(b"a", b"b", b"c")
    with place.raw() as database:
        for planted in BAD_KEYS.values():
            database[planted] = b""
    return place


def test_bad_keys_are_no_events_and_each_is_counted_and_listed_in_every_opening(with_all_bad_keys: Place) -> None:
    with with_all_bad_keys.open() as queue:
        assert (len(queue), queue.ready_len(), queue.approximate_len()) == (3, 3, 3)
        assert ids(queue.iterate(skip_corrupt=True)) == [0, 1, 2]
        assert take_all(queue) == [0, 1, 2]
        assert skipped(queue) == 2 * len(BAD_KEYS)
        assert queue.pop() is None
        assert queue.corrupt_keys() == sorted(BAD_KEYS.values())
        assert queue.push(b"d").id == 3
        queue.ack_many([0, 1, 2])
    queue = with_all_bad_keys.open()
    with pytest.raises(CorruptEvent):
        queue.pop()
    assert queue.corrupt_keys() == sorted(BAD_KEYS.values())


def test_a_bad_key_that_an_iterator_skipped_still_comes_to_pop_and_the_other_way_round(place: Place) -> None:
    place.holding(b"a").plant(b"zz", b"")
    queue = place.open()
    list(queue.iterate(skip_corrupt=True))
    queue.pop()
    with pytest.raises(CorruptEvent):
        queue.pop()
    take_all(queue)
    events = queue.iterate()
    next(events)
    with pytest.raises(CorruptEvent):
        next(events)


def test_nothing_but_a_bad_key_is_an_empty_queue_that_raises(place: Place) -> None:
    place.open().close()
    place.plant(b"zz", b"")
    queue = place.open()
    assert queue.is_empty
    with pytest.raises(CorruptEvent):
        queue.pop()
    assert queue.pop(skip_corrupt=True) is None
    assert queue.pop() is None


def test_a_bad_key_beside_the_very_last_id_hides_nothing(place: Place) -> None:
    begin_at(place.path, LAST - 1)
    place.holding(b"last")
    place.plant(key(LAST - 1) + b"\0", b"")
    place.plant(key(LAST) + b"\0", b"")
    queue = place.open()
    assert ids(queue.iterate(skip_corrupt=True)) == [LAST - 1]
    assert take_all(queue) == [LAST - 1]


# Values


@pytest.fixture(params=[0, 1, 2], ids=["first", "between", "last"])
def bad(request: pytest.FixtureRequest) -> int:
    """Which of the events 0, 1 and 2 the codec refuses."""
    return int(request.param)


@pytest.fixture
def with_bad_value(place: Place, bad: int) -> DurableEventQueue[bytes]:
    queue: DurableEventQueue[bytes] = place.open(codec=RefusingCodec())
    queue.push_many(b"bad" if number == bad else b"good" for number in range(3))
    return queue


def test_get_of_a_bad_value_raises_the_error_of_the_codec_each_time(
    with_bad_value: DurableEventQueue[bytes], bad: int
) -> None:
    take_all(with_bad_value)
    for _ in range(2):
        with pytest.raises(CorruptEvent, match=f"event {bad} ") as raised:
            with_bad_value.get(bad)
        assert isinstance(raised.value.__cause__, RuntimeError)


def test_an_iterator_goes_on_when_the_bad_value_that_it_met_was_acked(
    with_bad_value: DurableEventQueue[bytes], bad: int
) -> None:
    events = with_bad_value.iterate()
    for _ in range(bad):
        next(events)
    with pytest.raises(CorruptEvent):
        next(events)
    with_bad_value.ack(bad)
    assert ids(events) == list(range(bad + 1, 3))


def test_a_bad_value_counts_as_an_event_and_is_in_flight_when_it_was_skipped(place: Place) -> None:
    place.holding(b"a", b"bad", b"c")
    with place.open(codec=RefusingCodec()) as queue:
        assert (len(queue), queue.ready_len()) == (3, 3)
        assert take_all(queue) == [0, 2]
        assert (len(queue), queue.ready_len(), queue.pop()) == (3, 0, None)
        queue.ack_many([0, 2])
    with place.open(codec=RefusingCodec()) as queue:
        with pytest.raises(CorruptEvent, match="event 1 "):
            queue.pop()
        assert queue.push(b"d").id == 3
        take_all(queue)
        queue.ack(1)
    assert place.ids() == [3]


def test_a_bad_value_can_be_acked_where_it_is(with_bad_value: DurableEventQueue[bytes], bad: int) -> None:
    with_bad_value.ack(bad)
    assert ids(iter(with_bad_value.pop, None)) == [one for one in range(3) if one != bad]


@pytest.mark.parametrize("take", TAKES)
def test_a_bad_value_that_was_nacked_raises_again(
    with_bad_value: DurableEventQueue[bytes], bad: int, take: str
) -> None:
    take_all(with_bad_value)
    with_bad_value.nack(bad)
    for _ in range(2):
        with pytest.raises(CorruptEvent, match=f"event {bad} "):
            TAKES[take](with_bad_value)
    assert TAKES[take](with_bad_value, skip_corrupt=True) is None
    assert skipped(with_bad_value) == 2


def test_a_codec_that_has_learned_reads_what_was_a_bad_value(place: Place) -> None:
    codec = RefusingCodec()
    queue = place.holding(b"bad").open(codec=codec)
    with pytest.raises(CorruptEvent):
        queue.pop()
    codec.refuses = False
    assert queue.pop() == DurableEvent(0, b"bad")


def test_a_bad_value_that_is_pushed_is_raised_by_a_waiting_poll_or_skipped_there(place: Place) -> None:
    queue = place.open(codec=RefusingCodec())
    polling = Background(queue.poll, None)
    wait_for_waiting_threads()
    queue.push(b"bad")
    assert isinstance(polling.error(), CorruptEvent)
    queue.ack(0)
    polling = Background(queue.poll, None, skip_corrupt=True)
    wait_for_waiting_threads()
    queue.push(b"bad")
    wait_for_waiting_threads()
    queue.push(b"good")
    assert polling.result() == DurableEvent(2, b"good")


def test_what_is_skipped_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.holding(b"bad", b"x").plant(b"zz", b"")
    take_all(place.open(codec=RefusingCodec()))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "skipped: event 0 " in caplog.text
    assert "skipped: the key b'zz'" in caplog.text


# Beside the events


def test_totals_that_cannot_be_read_are_damage_and_the_refused_queue_keeps_no_lock(place: Place) -> None:
    with place.holding(b"a").raw("totals") as totals:
        right = totals[b"totals"] or b""
        totals[b"totals"] = b"short"
    with pytest.raises(CorruptData, match="totals cannot be read"):
        place.open()
    place.plant(b"totals", right, "totals")
    assert place.open().pop() == DurableEvent(0, b"a")


def test_an_event_that_others_deleted_from_the_database_is_missed(place: Place) -> None:
    with place.open(clock=lambda: 1.0) as queue:
        queue.push(b"a")
        queue.push(b"b")
    with place.raw() as database:
        del database[key(1)]
    with pytest.raises(CorruptData, match="at least 1 event is missing"):
        place.open()


def test_times_that_cannot_be_read_are_ignored(place: Place) -> None:
    place.holding(b"a")
    place.plant(b"short", b"", "times")
    place.plant(key(0), b"short", "times")
    queue = place.open()
    assert queue.push(b"b").id == 1
    assert take_all(queue) == [0, 1]


# Damaged files


def damage(path: Path) -> None:
    """Flip bytes in the first half of a file: that is where the blocks of data are."""
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 4, len(data) // 2):
        data[at] ^= 0xFF
    path.write_bytes(data)


def tables(place: Place) -> list[Path]:
    return list(place.path.glob("*.sst"))


def largest_table(place: Place) -> Path:
    return max(tables(place), key=lambda path: path.stat().st_size)


@pytest.fixture
def damaged(place: Place) -> Place:
    """A queue of a hundred events in one table of RocksDB, the middle of which is not readable."""
    place.holding(*(random.Random(number).randbytes(1000) for number in range(100))).flush()
    damage(largest_table(place))
    return place


def test_a_damaged_table_never_looks_like_the_end_of_the_queue(damaged: Place) -> None:
    with pytest.raises((CorruptData, StorageError), match=re.escape(f"the queue in {damaged.path} is damaged")):
        take_all(damaged.open())


READS: dict[str, Callable[[DurableEventQueue[bytes]], object]] = {
    "pop": take_all,
    "poll": lambda queue: take_all(queue, "poll"),
    "iterate": lambda queue: list(queue.iterate(skip_corrupt=True)),
    "get": lambda queue: [queue.get(number) for number in range(3000)],
}


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Place]:
    """A lazy queue in a table of RocksDB that is more than RocksDB and the queue keep in memory."""
    place = Place(tmp_path / "queue", lazy=True)
    place.holding(*(random.Random(number).randbytes(5000) for number in range(3000))).flush()
    yield place
    place.close()


@pytest.mark.parametrize("read", READS)
def test_a_table_that_is_damaged_while_a_lazy_queue_is_open_raises(large: Place, read: str) -> None:
    """And so does the next opening, or the queue would take the damage for its end, and use ids again."""
    queue = large.open()
    damage(largest_table(large))
    is_damaged = pytest.raises(
        (CorruptData, StorageError), match=re.escape(f"the queue in {large.path} is damaged: it could not be read")
    )
    with is_damaged:
        READS[read](queue)
    queue.close()
    with is_damaged:
        large.open()


def damage_if_it_holds(table: Path, text: bytes) -> None:
    """Flip the bytes of the first place where some text is, which is in the data and not in what describes it."""
    data = bytearray(table.read_bytes())
    at = data.find(text)
    if at < 0:
        return
    for number in range(at, at + len(text)):
        data[number] ^= 0xFF
    table.write_bytes(data)


def test_a_damaged_table_of_the_totals_raises(place: Place) -> None:
    place.holding(b"a").flush()
    for table in tables(place):
        damage_if_it_holds(table, b"totals")
    with pytest.raises(CorruptData, match=re.escape(f"the queue in {place.path} is damaged: it could not be read")):
        place.open()


def test_a_value_that_would_need_all_memory_to_decode_is_corrupt(place: Place) -> None:
    queue = place.holding(b"bad", b"x").open(codec=RefusingCodec(MemoryError))
    with pytest.raises(CorruptEvent, match="event 0"):
        queue.pop()
    assert queue.pop(skip_corrupt=True) == DurableEvent(1, b"x")
