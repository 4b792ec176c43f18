"""`ship`: from queues on this host into a buffer. Nothing is lost, and nothing comes twice but after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock import Consumer, DurableEventQueue, EventQueue, ProducerConfig
from penstock.buffer import Manifest
from penstock.engine import EngineStats, QueueReceiver, ship, shipping
from penstock.errors import Closed, CorruptData, EngineError, InvalidInput, NotFound, SinkFailed, StorageError
from penstock.queue import MsgspecCodec, opening_of, queues_in
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support.processes import PATIENCE, Parent, Start
from tests.support.waiting import Background, Bell, wait_until


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, stop)]


def shipped(where: str | Path | ObjectStore) -> list[bytes]:
    """Everything that is in the buffer, in its order."""
    with Consumer(where) as consumer:
        return [value for batch in consumer for value in batch.entries]


def events_in(path: Path) -> list[bytes]:
    with DurableEventQueue(path) as queue:
        return [event.event for event in queue.iterate()]


def fill(path: Path, events: list[bytes]) -> Path:
    with DurableEventQueue(path) as queue:
        queue.push_many(events)
    return path


@pytest.fixture
def where(fresh_name: str) -> str:
    return f"memory://{fresh_name}"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[DurableEventQueue[bytes]]:
    with DurableEventQueue(tmp_path / "queue") as queue:
        yield queue


class QuickStop(Event):
    """A stop whose waits are short: a shipper that retries or looks again does so at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout and min(timeout, 0.005))


@pytest.fixture
def stop() -> Iterator[Event]:
    """Set at the end, whatever happened: no shipper outlives its test."""
    stop = QuickStop()
    yield stop
    stop.set()


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Bell:
    """Rings when a block is acked in its queue."""
    bell, commit = Bell(), QueueReceiver.commit

    def ringing(receiver: QueueReceiver, tokens: Any) -> None:
        commit(receiver, tokens)
        bell()

    monkeypatch.setattr(QueueReceiver, "commit", ringing)
    return bell


# --- one queue


def test_an_open_queue_is_shipped_while_its_application_pushes(
    queue: DurableEventQueue[bytes], where: str, stop: Event, committed: Bell
) -> None:
    shipper = Background(lambda: ship(queue, where, stop=stop))
    queue.push_many(numbered(0, 100))
    committed.wait()
    for number in range(100, 600):
        queue.push(b"%06d" % number)
    stop.set()
    stats = shipper.result()
    assert stats.processed >= 100
    assert shipped(where) + [event.event for event in queue.iterate()] == numbered(0, 600)
    assert len(queue) == 600 - stats.processed


def test_an_open_queue_can_be_used_after_it_was_shipped(queue: DurableEventQueue[bytes], where: str) -> None:
    queue.push_many(numbered(0, 10))
    assert ship(queue, where, until_idle=True).processed == 10
    queue.push(b"next")
    event = queue.pop()
    assert event is not None
    assert event.event == b"next"
    queue.ack(event.id)
    assert queue.is_empty


def test_what_a_stopped_shipper_did_not_ship_is_ready_at_once(
    queue: DurableEventQueue[bytes], where: str, stop: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.push_many([bytes(9 << 20)] * 3)  # a block has 16 MiB, and so one of these
    commit = QueueReceiver.commit

    def last(receiver: QueueReceiver, tokens: Any) -> None:
        commit(receiver, tokens)
        stop.set()

    monkeypatch.setattr(QueueReceiver, "commit", last)
    assert ship(queue, where, stop=stop).processed == 1
    assert (len(queue), queue.ready_len()) == (2, 2)


def test_a_path_is_opened_and_closed_again(tmp_path: Path, where: str) -> None:
    path = fill(tmp_path / "queue", numbered(0, 1000))
    stats = ship(path, where, until_idle=True)
    assert (stats.processed, stats.bytes) == (1000, 6000)
    assert events_in(path) == []
    assert shipped(where) == numbered(0, 1000)


def test_the_order_of_events_is_kept_over_many_blocks(queue: DurableEventQueue[bytes], where: str) -> None:
    large = bytes(64 << 10)
    for first in range(0, 600, 60):
        queue.push_many([number + large for number in numbered(first, first + 60)])
    ship(queue, where, until_idle=True)
    assert [value[:6] for value in shipped(where)] == numbered(0, 600)
    assert len(Manifest.read(where).entries) >= 3, "one block proves nothing about the order of blocks"


def test_events_larger_than_the_budget_are_shipped_one_by_one(queue: DurableEventQueue[bytes], where: str) -> None:
    events = [bytes([number]) * (17 << 20) for number in range(3)]
    queue.push_many(events)
    assert ship(queue, where, until_idle=True).processed == 3
    assert shipped(where) == events


def test_of_a_queue_with_a_codec_the_bytes_on_disk_are_shipped(tmp_path: Path, where: str) -> None:
    codec = MsgspecCodec(dict[str, int])
    with DurableEventQueue(tmp_path / "queue", codec=codec) as queue:
        queue.push_many([{"a": 1}, {"b": 2}])
        ship(queue, where, until_idle=True)
        queue.push({"c": 3})
    ship(tmp_path / "queue", where, until_idle=True)
    assert shipped(where) == [codec.encode(event) for event in ({"a": 1}, {"b": 2}, {"c": 3})]


def test_nothing_to_ship_is_no_error_and_writes_nothing(queue: DurableEventQueue[bytes], where: str) -> None:
    assert ship(queue, where, until_idle=True) == EngineStats()
    assert shipped(where) == []


def test_a_stop_that_was_set_before_ships_nothing(queue: DurableEventQueue[bytes], where: str, stop: Event) -> None:
    queue.push(b"stays")
    stop.set()
    assert ship(queue, where, stop=stop) == EngineStats()
    assert queue.ready_len() == 1


def test_two_queues_can_be_shipped_into_one_buffer(tmp_path: Path, where: str) -> None:
    paths = [fill(tmp_path / str(first), numbered(first, first + 100)) for first in (0, 100)]
    shippers = [Background(partial(ship, path, where, until_idle=True)) for path in paths]
    assert [shipper.result().processed for shipper in shippers] == [100, 100]
    assert sorted(shipped(where)) == numbered(0, 200)


# --- a folder of queues


def test_every_queue_of_a_folder_is_shipped(tmp_path: Path, where: str) -> None:
    for number in range(3):
        fill(tmp_path / f"worker-{number}", numbered(number * 10, number * 10 + 10))
    (tmp_path / "no queue").mkdir()
    (tmp_path / "file").write_text("no queue either")
    assert ship(tmp_path, where, until_idle=True).processed == 30
    assert shipped(where) == numbered(0, 30)
    assert [events_in(tmp_path / f"worker-{number}") for number in range(3)] == [[], [], []]
    assert list((tmp_path / "no queue").iterdir()) == []


def test_one_queue_of_a_folder_that_cannot_be_opened_does_not_hold_up_the_others(tmp_path: Path, where: str) -> None:
    for name in "abc":
        with DurableEventQueue(tmp_path / name) as queue:
            queue.push_many([name.encode() * 200] * 100)
    (tmp_path / "a" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises((CorruptData, StorageError), match=r"queue in .*a "):
        ship(tmp_path, where, until_idle=True)
    for place in queues_in(tmp_path)[1:]:
        with DurableEventQueue(place) as queue:
            assert queue.is_empty


def hold(parent: Parent, path: str) -> None:
    with DurableEventQueue(path):
        parent.tell("open")
        parent.wait()
    parent.tell("closed")


def test_until_idle_the_queue_that_another_process_holds_is_named_and_the_others_are_shipped(
    tmp_path: Path, where: str, start: Start
) -> None:
    for number in range(3):
        fill(tmp_path / f"worker-{number}", numbered(number * 10, number * 10 + 10))
    assert start(hold, str(tmp_path / "worker-1")).hear() == "open"
    with pytest.raises(StorageError, match=r"worker-1.*another process"):
        ship(tmp_path, where, until_idle=True)
    assert shipped(where) == numbered(0, 10) + numbered(20, 30)


def test_a_queue_that_another_process_holds_is_shipped_once_it_is_released(
    tmp_path: Path, where: str, start: Start, stop: Event, committed: Bell
) -> None:
    for number in range(2):
        fill(tmp_path / f"worker-{number}", numbered(number * 10, number * 10 + 10))
    holder = start(hold, str(tmp_path / "worker-0"))
    assert holder.hear() == "open"
    shipper = Background(lambda: ship(tmp_path, where, stop=stop))
    committed.wait()
    assert shipped(where) == numbered(10, 20)
    holder.tell("close")
    assert holder.hear() == "closed"
    committed.wait()
    stop.set()
    assert shipper.result().processed == 20
    assert sorted(shipped(where)) == numbered(0, 20)


def test_a_queue_that_comes_later_is_shipped_too(tmp_path: Path, where: str, stop: Event, committed: Bell) -> None:
    (tmp_path / "folder").mkdir()
    shipper = Background(lambda: ship(tmp_path / "folder", where, stop=stop))
    fill(tmp_path / "elsewhere", numbered(0, 10)).rename(tmp_path / "folder" / "new")
    committed.wait()
    stop.set()
    assert shipper.result().processed == 10


class Looks:
    """Rings when the shipper has read the last opening of a queue: while it has the queue open, and in each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bell = Bell()
        self.before: list[Callable[[], object]] = []  # what happens before each look, first to last
        monkeypatch.setattr(shipping, "opening_of", self)

    def __call__(self, place: str) -> bytes | None:
        if self.before:
            self.before.pop(0)()
        found = opening_of(place)
        self.bell()
        return found


def test_a_queue_of_a_folder_that_is_used_again_is_shipped_again(
    tmp_path: Path, where: str, stop: Event, committed: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    fill(tmp_path / "queue", [b"first"])
    shipper = Background(lambda: ship(tmp_path, where, stop=stop))
    committed.wait()
    looks.bell.wait(2)
    fill(tmp_path / "queue", [b"second"])
    committed.wait()
    stop.set()
    shipper.result()
    assert shipped(where) == [b"first", b"second"]


def test_what_is_pushed_right_after_the_shipper_closed_a_queue_is_shipped(
    tmp_path: Path, where: str, stop: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its application opens the queue, pushes and closes it between the close and the next look."""
    looks = Looks(monkeypatch)
    fill(tmp_path / "queue", [b"first"])
    looks.before = [lambda: None, lambda: fill(tmp_path / "queue", [b"second"])]
    shipper = Background(lambda: ship(tmp_path, where, stop=stop))
    looks.bell.wait(4)
    stop.set()
    shipper.result()
    assert shipped(where) == [b"first", b"second"]


def test_a_queue_that_was_not_used_is_not_opened_again(
    tmp_path: Path, where: str, stop: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    fill(tmp_path / "queue", [b"event"])
    shipper = Background(lambda: ship(tmp_path, where, stop=stop))
    looks.bell.wait(2)
    opening = opening_of(tmp_path / "queue")
    looks.bell.wait(5)
    stop.set()
    shipper.result()
    assert opening_of(tmp_path / "queue") == opening


def test_every_opening_of_a_queue_differs_from_the_one_before(tmp_path: Path) -> None:
    assert opening_of(tmp_path / "queue") is None
    seen = []
    for _ in range(3):
        with DurableEventQueue(tmp_path / "queue") as queue:
            queue.push(b"event")
            seen.append(opening_of(tmp_path / "queue"))
        assert opening_of(tmp_path / "queue") == seen[-1]
    assert len(set(seen)) == 3


def test_until_idle_where_nothing_is_there_is_no_queue(tmp_path: Path, where: str) -> None:
    with pytest.raises(NotFound, match=r"there is no durable queue in .*nothing"):
        ship(tmp_path / "nothing", where, until_idle=True)


def test_a_file_is_no_folder_to_wait_for(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotFound, match=r"there is no durable queue in .*file: Not a directory"):
        ship(tmp_path / "file", where)


@pytest.mark.parametrize("place", ["folder/worker", "folder"], ids=["a folder", "one queue"])
def test_what_is_not_there_yet_is_waited_for(
    tmp_path: Path, where: str, stop: Event, committed: Bell, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """As by a shipper that starts before the application does."""
    shipper = Background(lambda: ship(tmp_path / "folder", where, stop=stop))
    wait_until(lambda: "is not there yet" in caplog.text)
    fill(tmp_path / "elsewhere" / place, numbered(0, 10))
    (tmp_path / "elsewhere" / "folder").rename(tmp_path / "folder")
    committed.wait()
    stop.set()
    assert shipper.result().processed == 10
    assert caplog.text.count("is not there yet") == 1


def test_in_an_empty_folder_is_no_queue_and_none_is_created(tmp_path: Path, where: str) -> None:
    with pytest.raises(NotFound, match="there is no durable queue in"):
        ship(tmp_path, where, until_idle=True)
    assert list(tmp_path.iterdir()) == []


def test_a_queue_that_is_open_in_this_process_is_refused_by_its_path(
    queue: DurableEventQueue[bytes], tmp_path: Path, where: str
) -> None:
    queue.push(b"stays")
    with pytest.raises(StorageError):
        ship(tmp_path / "queue", where, until_idle=True)
    assert queue.ready_len() == 1


# --- a store that fails


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER])
def test_a_store_that_fails_for_a_while_is_tried_again_and_nothing_is_lost(
    fault: Fault, queue: DurableEventQueue[bytes], where: str, stop: Event, committed: Bell
) -> None:
    store = FaultyStore(where, rates={})
    store.inject(fault, operation="put", times=5)
    queue.push_many(numbered(0, 100))
    shipper = Background(lambda: ship(queue, store, stop=stop))
    committed.wait()
    stop.set()
    assert shipper.result().errors == 5
    assert store.planned == []
    assert queue.is_empty
    assert shipped(where) == numbered(0, 100)


def test_until_idle_a_store_that_fails_is_an_error_and_nothing_is_acked(
    queue: DurableEventQueue[bytes], where: str
) -> None:
    store = FaultyStore(where, rates={})
    store.inject(Fault.ERROR_BEFORE, operation="put")
    queue.push_many(numbered(0, 100))
    with pytest.raises(SinkFailed) as failed:
        ship(queue, store, until_idle=True)
    assert isinstance(failed.value.__cause__, StorageError)
    assert queue.ready_len() == len(queue) == 100
    assert shipped(where) == []
    ship(queue, store, until_idle=True)
    assert shipped(where) == numbered(0, 100)


def test_a_store_that_fails_by_chance_doubles_and_loses_nothing(
    queue: DurableEventQueue[bytes], where: str, stop: Event, committed: Bell
) -> None:
    store = FaultyStore(where, seed=7, sleep=lambda _: None)
    shipper = Background(lambda: ship(queue, store, stop=stop))
    for first in range(0, 500, 10):
        queue.push_many(numbered(first, first + 10))
    while not queue.is_empty:
        committed.wait()
    stop.set()
    shipper.result()
    with store.quiet():
        assert shipped(where) == numbered(0, 500)
    assert store.met


def test_a_store_that_fails_in_a_folder_is_tried_again_too(
    tmp_path: Path, where: str, stop: Event, committed: Bell
) -> None:
    store = FaultyStore(where, rates={})
    store.inject(Fault.ERROR_BEFORE, operation="put", times=3)
    for number in range(2):
        fill(tmp_path / str(number), numbered(number * 10, number * 10 + 10))
    shipper = Background(lambda: ship(tmp_path, store, stop=stop))
    committed.wait(2)
    stop.set()
    assert shipper.result().processed == 20
    assert shipped(where) == numbered(0, 20)


class LongStop(Event):
    """A stop whose waits last until it is set; `waits` rings when one begins."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = Bell()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits()
        return super().wait(PATIENCE)


def test_a_stop_ends_the_wait_between_two_tries(queue: DurableEventQueue[bytes], where: str) -> None:
    store, stop = FaultyStore(where, rates={}), LongStop()
    store.inject(Fault.ERROR_BEFORE, operation="put", times=5)
    queue.push(b"stays")
    shipper = Background(lambda: ship(queue, store, stop=stop))
    stop.waits.wait()
    stop.set()
    assert shipper.result().processed == 0
    assert queue.ready_len() == 1


def test_an_error_that_a_retry_cannot_mend_is_raised(queue: DurableEventQueue[bytes], where: str) -> None:
    queue.push(bytes(1000))
    with pytest.raises(SinkFailed) as failed:
        ship(queue, where, config=ProducerConfig(max_batch_bytes=100))
    assert isinstance(failed.value.__cause__, InvalidInput)
    assert queue.ready_len() == 1


def test_a_queue_that_is_closed_meanwhile_ends_it(
    queue: DurableEventQueue[bytes], where: str, stop: Event, committed: Bell
) -> None:
    shipper = Background(lambda: ship(queue, where, stop=stop))
    queue.push(b"event")
    committed.wait()
    queue.close()
    with pytest.raises(EngineError) as failed:
        shipper.result()
    assert isinstance(failed.value.__cause__, Closed)


# --- arguments


def test_what_is_no_queue_is_refused(where: str) -> None:
    for wrong in (None, 7, b"path", EventQueue(), object()):
        with pytest.raises(InvalidInput, match="ship takes an open DurableEventQueue or a path"):
            ship(wrong, where)  # type: ignore[arg-type]


def test_other_wrong_arguments_are_refused(queue: DurableEventQueue[bytes], where: str) -> None:
    queue.push(b"stays")
    with pytest.raises(InvalidInput, match=r"stop must be a threading\.Event"):
        ship(queue, where, stop=True, until_idle=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        ship(queue, where, until_idle=True, config="fast")  # type: ignore[arg-type]
    for nowhere in ("", "nonsense://bucket", 7):
        with pytest.raises(InvalidInput):
            ship(queue, nowhere, until_idle=True)  # type: ignore[arg-type]
    assert queue.ready_len() == 1
