"""`QueueReceiver` and the queue's `poll_bytes` it stands on, with a real RocksDB."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DurableEvent, DurableEventQueue, Record
from penstock.engine import BatchEngine, EngineConfig, QueueReceiver
from penstock.engine.transports import queue as module
from penstock.errors import Closed, CommitFailed, InvalidInput, ReceiveFailed, StorageError
from penstock.queue.database import Database
from tests.engine.doubles import Sink, through, values
from tests.support.codecs import CountingCodec
from tests.support.queue_folder import Place, key
from tests.support.waiting import A_WHILE, Background


@pytest.fixture(params=["lazy", "eager"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "queue", lazy=request.param == "lazy")
    yield place
    place.close()


@pytest.fixture
def queue(place: Place) -> DurableEventQueue[bytes]:
    return place.open()


def ids(events: list[DurableEvent[bytes]]) -> list[int]:
    return [event.id for event in events]


# poll_bytes


def test_many_come_in_the_order_of_their_ids(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b", b"c"])
    assert queue.poll_bytes(10) == [DurableEvent(0, b"a"), DurableEvent(1, b"b"), DurableEvent(2, b"c")]


def test_what_was_nacked_comes_in_its_place(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b", b"c"])
    queue.pop()
    queue.pop()
    queue.nack(0)
    assert ids(queue.poll_bytes(10)) == [0, 2]


def test_no_more_come_than_the_limit(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b", b"c"])
    assert [ids(queue.poll_bytes(2)), ids(queue.poll_bytes(2))] == [[0, 1], [2]]


def test_it_stops_before_passing_the_limit_in_bytes(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"aa", b"bb", b"c"])
    assert [ids(queue.poll_bytes(9, 3)), ids(queue.poll_bytes(9, 3))] == [[0], [1, 2]]


@pytest.mark.parametrize("most", [0, 1, 3])
def test_one_larger_than_the_limit_comes_alone(queue: DurableEventQueue[bytes], most: int) -> None:
    queue.push_many([b"aaaa", b"b"])
    assert ids(queue.poll_bytes(9, most)) == [0]


def test_what_a_poll_did_not_return_is_ready(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"aa", b"bb", b"c"])
    queue.poll_bytes(9, 3)
    assert queue.ready_len() == 2


def test_what_a_poll_returned_is_in_flight(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"a", b"b"])
    queue.poll_bytes(2)
    assert (queue.pop(), len(queue)) == (None, 2)


def test_a_poll_returns_more_than_it_takes_under_one_lock(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"x"] * 2500)
    assert ids(queue.poll_bytes(2400)) == list(range(2400))


def test_the_limit_in_bytes_holds_over_several_locks(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"x"] * 2500)
    assert len(queue.poll_bytes(5000, 1700)) == 1700


def test_an_empty_queue_gives_nothing_when_the_time_is_over(queue: DurableEventQueue[bytes]) -> None:
    assert queue.poll_bytes(9, timeout=0) == []


def test_it_waits_for_the_first_and_not_for_more(queue: DurableEventQueue[bytes]) -> None:
    polling = Background(lambda: queue.poll_bytes(9, timeout=None))
    assert not polling.has_ended_within(A_WHILE)
    queue.push(b"a")
    assert ids(polling.result()) == [0]


def test_close_ends_a_wait(queue: DurableEventQueue[bytes]) -> None:
    polling = Background(lambda: queue.poll_bytes(9, timeout=None))
    assert not polling.has_ended_within(A_WHILE)
    queue.close()
    with pytest.raises(Closed):
        polling.result()


def test_the_codec_is_not_asked(place: Place) -> None:
    codec = CountingCodec()
    queue = place.open(codec=codec)
    queue.push("text")
    assert (queue.poll_bytes(9), codec.decoded) == ([DurableEvent(0, b"text")], 0)


def test_bytes_that_the_codec_could_not_read_come_as_they_are(place: Place) -> None:
    place.holding(b"\xff\xfe")
    assert place.open(codec=CountingCodec()).poll_bytes(9) == [DurableEvent(0, b"\xff\xfe")]


@pytest.mark.parametrize("bad", [b"\0", b"\0" * 9, key(1) + b"x"], ids=["short", "first", "between"])
def test_keys_that_are_no_ids_are_skipped_and_counted(
    place: Place, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    place.holding(b"a", b"b", b"c").plant(bad, b"?")
    with caplog.at_level(logging.WARNING):
        assert ids(place.open().poll_bytes(9)) == [0, 1, 2]
    assert caplog.text.count("skipped") == 1


def test_keys_that_are_no_ids_alone_are_nothing(place: Place) -> None:
    place.holding().plant(b"short", b"?")
    assert place.open().poll_bytes(9, timeout=0) == []


def test_when_a_poll_raises_all_events_are_ready(queue: DurableEventQueue[bytes]) -> None:
    class Failing(list[DurableEvent[bytes]]):
        def append(self, event: DurableEvent[bytes]) -> None:
            if event.id == 1200:
                raise StorageError("the disk is gone")
            super().append(event)

    queue.push_many([b"x"] * 1500)
    with pytest.raises(StorageError, match="the disk is gone"):
        queue.poll_bytes(1500, into=Failing())
    assert ids(queue.poll_bytes(1500)) == list(range(1500))


@pytest.mark.parametrize("broken", [0, 7])
def test_an_event_that_cannot_be_read_does_not_hold_up_those_before_it(
    one: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    one.push_many([b"x"] * 10)
    for event in one.poll_bytes(10):
        one.nack(event.id)  # a nacked event is read from disk again
    get = Database.get
    monkeypatch.setattr(Database, "get", lambda database, number: None if number == broken else get(database, number))
    if broken:
        assert ids(one.poll_bytes(100)) == list(range(broken))
    with pytest.raises(StorageError, match=f"event {broken} is not on disk"):
        one.poll_bytes(100)
    assert one.ready_len() == 10 - broken


@pytest.mark.parametrize(
    ("limits", "field"), [((0,), "max_events"), ((True,), "max_events"), ((1, None, -1), "timeout")]
)
def test_a_limit_of_a_poll_out_of_range_is_refused(queue: DurableEventQueue[bytes], limits: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        queue.poll_bytes(*limits)


def test_threads_that_poll_side_by_side_get_everything_once(queue: DurableEventQueue[bytes]) -> None:
    queue.push_many([b"x"] * 400)

    def poll() -> list[int]:
        polls = iter(lambda: queue.poll_bytes(7, timeout=0), [])
        return [event.id for events in polls for event in events]

    pollers = [Background(poll) for _ in range(4)]
    assert sorted(number for poller in pollers for number in poller.result()) == list(range(400))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    most_events=st.integers(1, 5),
    most_bytes=st.none() | st.integers(0, 20),
)
def test_polls_take_everything_in_order_within_the_limits(
    shared: DurableEventQueue[bytes], sizes: list[int], most_events: int, most_bytes: int | None
) -> None:
    pushed = [event.id for event in shared.push_many([b"x" * size for size in sizes])]
    polls = list(iter(lambda: shared.poll_bytes(most_events, most_bytes, 0), []))
    shared.ack_many(pushed)
    assert [event.id for poll in polls for event in poll] == pushed
    for poll in polls:
        assert len(poll) <= most_events
        assert most_bytes is None or sum(len(event.event) for event in poll) <= most_bytes or len(poll) == 1


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableEventQueue[bytes]]:
    """A queue that is empty between examples."""
    with DurableEventQueue(tmp_path_factory.mktemp("shared") / "queue") as queue:
        yield queue


# The receiver


@pytest.fixture
def one(tmp_path: Path) -> Iterator[DurableEventQueue[bytes]]:
    with DurableEventQueue(tmp_path / "queue") as queue:
        yield queue


def test_an_event_is_a_record_and_its_id_the_token(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    batch = QueueReceiver(one).recv(10)
    assert (batch.records, batch.commit_tokens) == ([Record(b"a"), Record(b"b")], (0, 1))


def test_no_record_object_is_created_for_an_event(one: DurableEventQueue[bytes]) -> None:
    def records() -> int:
        return sum(isinstance(one, Record) for one in gc.get_objects())

    one.push_many([b"a"] * 10)
    before = records()
    batch = QueueReceiver(one).recv(10)
    assert records() == before
    assert (len(batch.records), records()) == (10, before + 10)


def test_the_value_is_what_lies_on_disk_whatever_the_codec(place: Place) -> None:
    queue = place.open(codec=CountingCodec())
    queue.push("text")
    assert values(QueueReceiver(queue).recv(1).records) == [b"text"]


def test_a_receive_keeps_to_its_limits(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"aa", b"bb", b"c", b"d"])
    receiver = QueueReceiver(one)
    assert [receiver.recv(9, 3).commit_tokens, receiver.recv(1).commit_tokens] == [(0,), (1,)]


def test_a_receive_of_nothing_is_empty(one: DurableEventQueue[bytes]) -> None:
    batch = QueueReceiver(one).recv(9, timeout=0)
    assert (len(batch), batch.commit_tokens) == (0, ())


def test_a_commit_is_an_ack(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    receiver = QueueReceiver(one)
    receiver.commit(receiver.recv(1).commit_tokens)
    assert [event.id for event in one.iterate()] == [1]


def test_what_was_committed_does_not_come_again_after_a_rewind(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    receiver = QueueReceiver(one)
    receiver.commit(receiver.recv(2).commit_tokens)
    receiver.rewind()
    assert receiver.recv(2, timeout=0).is_empty


def test_a_rewind_returns_what_was_not_committed_in_order(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b", b"c", b"d"])
    receiver = QueueReceiver(one)
    receiver.commit(receiver.recv(1).commit_tokens)
    receiver.recv(2)
    receiver.rewind()
    assert receiver.recv(9).commit_tokens == (1, 2, 3)


def test_a_rewind_leaves_alone_what_was_popped_past_the_receiver(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    one.pop()
    receiver = QueueReceiver(one)
    receiver.recv(9)
    receiver.rewind()
    assert receiver.recv(9).commit_tokens == (1,)


def test_a_rewind_skips_what_was_acked_past_the_receiver(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    receiver = QueueReceiver(one)
    receiver.recv(9)
    one.ack(0)
    receiver.rewind()
    assert receiver.recv(9).commit_tokens == (1,)


def test_close_returns_what_was_not_committed_and_leaves_the_queue_open(one: DurableEventQueue[bytes]) -> None:
    one.push_many([b"a", b"b"])
    with QueueReceiver(one) as receiver:
        receiver.commit(receiver.recv(1).commit_tokens)
        receiver.recv(1)
    assert one.ready_len() == 1


def test_close_again_and_close_after_the_queue_do_nothing(one: DurableEventQueue[bytes]) -> None:
    one.push(b"a")
    receiver = QueueReceiver(one)
    receiver.recv(1)
    one.close()
    receiver.close()
    receiver.close()
    assert not receiver.healthy


@pytest.mark.parametrize("closed", ["receiver", "queue"])
def test_it_is_healthy_while_it_and_its_queue_are_open(one: DurableEventQueue[bytes], closed: str) -> None:
    receiver = QueueReceiver(one)
    before = receiver.healthy
    (receiver if closed == "receiver" else one).close()
    assert (before, receiver.healthy) == (True, False)


def test_a_block_has_no_more_bytes_than_a_column_holds(
    one: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 3)
    one.push_many([b"aa", b"b", b"cc", b"d", b"e"])
    receiver = QueueReceiver(one)
    assert [receiver.recv(9).commit_tokens, receiver.recv(9, 100).commit_tokens] == [(0, 1), (2, 3)]


def test_a_queue_that_is_closed_fails_the_receive(one: DurableEventQueue[bytes]) -> None:
    receiver = QueueReceiver(one)
    one.close()
    with pytest.raises(ReceiveFailed) as caught:
        BatchEngine().run(receiver, through, Sink(), until_idle=True)
    assert isinstance(caught.value.__cause__, Closed)


def test_an_ack_that_the_disk_refuses_fails_the_commit_and_the_event_comes_again(
    one: DurableEventQueue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    one.push(b"a")
    receiver, sink = QueueReceiver(one), Sink()
    engine = BatchEngine(EngineConfig(recv_timeout=0))

    def refuse(tokens: Any) -> None:
        raise StorageError("the disk refuses")

    with monkeypatch.context() as patched:
        patched.setattr(one, "ack_many", refuse)
        with pytest.raises(CommitFailed, match="the disk refuses"):
            engine.run(receiver, through, sink, until_idle=True)
    engine.run(receiver, through, sink, until_idle=True)
    assert (sink.values, len(one)) == ([b"a", b"a"], 0)


@pytest.mark.parametrize("what", [None, "/some/path", object()])
def test_what_is_no_durable_queue_is_refused(what: Any) -> None:
    with pytest.raises(InvalidInput, match="takes an open DurableEventQueue"):
        QueueReceiver(what)
