"""`MemoryTransport`: in order, a sequence for a token, a watermark for a commit."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock import Record
from penstock.engine import MemoryTransport, WorkBatch
from penstock.errors import Closed, InvalidInput
from penstock.records import values_to_arrow
from tests.engine.doubles import values
from tests.support.waiting import A_WHILE, Background


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


def holding(*payloads: bytes, **more: Any) -> MemoryTransport:
    transport = MemoryTransport(**more)
    transport.send(map(Record, payloads))
    return transport


def test_what_was_injected_comes_with_its_key_and_sequence(transport: MemoryTransport) -> None:
    assert [transport.inject(b"v", key=b"k"), transport.inject(b"w")] == [0, 1]
    batch = transport.recv(10)
    assert (batch.records, batch.commit_tokens) == ([Record(b"v", key=b"k"), Record(b"w")], (0, 1))


@pytest.mark.parametrize(
    "sent",
    [
        [Record(b"a"), Record(b"b")],
        iter([Record(b"a"), Record(b"b")]),
        WorkBatch([Record(b"a"), Record(b"b")], (5,)),
        WorkBatch(values_to_arrow([b"a", b"b"])),
    ],
    ids=["list", "iterator", "batch", "columns"],
)
def test_what_was_sent_comes_in_order_with_tokens_of_its_own(transport: MemoryTransport, sent: Any) -> None:
    transport.send(sent)
    batch = transport.recv(10)
    assert (values(batch.records), batch.commit_tokens) == ([b"a", b"b"], (0, 1))


def test_what_is_injected_during_a_receive_is_received(transport: MemoryTransport) -> None:
    receiving = Background(lambda: transport.recv(1, timeout=3600))
    assert not receiving.has_ended_within(A_WHILE)
    transport.inject(b"late")
    assert values(receiving.result().records) == [b"late"]


@pytest.mark.parametrize("token", [1, -1, "0", 0.0, True, None])
def test_a_sequence_that_was_not_handed_out_is_refused_and_nothing_is_committed(token: Any) -> None:
    transport = holding(b"a", b"b")
    transport.recv(1)
    with pytest.raises(InvalidInput, match="1 records were handed out"):
        transport.commit((0, token))
    assert transport.committed_sequence is None


def test_a_rewind_wakes_a_receive_that_waits() -> None:
    transport = holding(b"a")
    transport.recv(1)
    receiving = Background(lambda: transport.recv(1, timeout=3600))
    assert not receiving.has_ended_within(A_WHILE)
    transport.rewind()
    assert values(receiving.result().records) == [b"a"]


def test_what_is_committed_is_released() -> None:
    payload = bytes(1000)
    before = sys.getrefcount(payload)
    transport = holding(*[payload] * 100)
    transport.recv(100)
    transport.commit((99,))
    assert sys.getrefcount(payload) == before


@pytest.mark.parametrize(
    "work",
    [
        lambda transport: transport.inject(b"a"),
        lambda transport: transport.send([Record(b"a")]),
        lambda transport: transport.recv(1),
        lambda transport: transport.commit((0,)),
    ],
)
def test_after_close_it_refuses_everything(work: Any) -> None:
    transport = holding(b"a")
    transport.recv(1)
    transport.close()
    with pytest.raises(Closed):
        work(transport)


def test_close_ends_a_receive_that_waits(transport: MemoryTransport) -> None:
    receiving = Background(lambda: transport.recv(1, timeout=3600))
    assert not receiving.has_ended_within(A_WHILE)
    transport.close()
    with pytest.raises(Closed):
        receiving.result()


def test_threads_that_receive_side_by_side_get_everything_once() -> None:
    transport = holding(*[b"%d" % number for number in range(300)])

    def take() -> list[int]:
        tokens: list[int] = []
        while some := transport.recv(7, timeout=0).commit_tokens:
            tokens += some
        return tokens

    receivers = [Background(take) for _ in range(4)]
    assert sorted(token for receiver in receivers for token in receiver.result()) == list(range(300))


class Model(RuleBasedStateMachine):
    """A list, a watermark and a cursor: what comes, within which limits, what is committed, and what comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.transport = MemoryTransport()
        self.all: list[bytes] = []
        self.committed = self.cursor = self.handed_out = 0

    @rule(payloads=st.lists(st.binary(max_size=5), max_size=4))
    def send(self, payloads: list[bytes]) -> None:
        self.transport.send(map(Record, payloads))
        self.all += payloads

    @rule(max_records=st.integers(1, 5), max_bytes=st.none() | st.integers(0, 9))
    def recv(self, max_records: int, max_bytes: int | None) -> None:
        batch = self.transport.recv(max_records, max_bytes, 0)
        end = self.cursor
        while end < len(self.all) and end - self.cursor < max_records:
            size = sum(map(len, self.all[self.cursor : end + 1]))
            if end > self.cursor and max_bytes is not None and size > max_bytes:
                break
            end += 1
        assert values(batch.records) == self.all[self.cursor : end]
        assert batch.commit_tokens == tuple(range(self.cursor, end))
        self.cursor = end
        self.handed_out = max(self.handed_out, end)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if self.handed_out:
            tokens = data.draw(st.lists(st.integers(0, self.handed_out - 1), max_size=3))
            self.transport.commit(tokens)
            self.committed = max([self.committed, *(token + 1 for token in tokens)])
            self.cursor = max(self.cursor, self.committed)

    @rule()
    def rewind(self) -> None:
        self.transport.rewind()
        self.cursor = self.committed

    @invariant()
    def the_watermark_is_the_highest_commit(self) -> None:
        assert self.transport.committed_sequence == (self.committed - 1 if self.committed else None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
