"""One consumer against a model of it, on a store that fails from a seed: after every step both say the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.buffer import Consumer, Manifest, Metadata, encode_batch
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.manifest.queue import BufferQueue
from penstock.errors import Fenced, InvalidInput, NotFound, OutOfOrderAck, PenstockError, StorageError
from penstock.storage import open_store
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.reference_consumer import ACKS_PER_WRITE, Model
from tests.support.enqueuing import enqueue
from tests.support.filled_buffers import MANIFEST, Cursors, cursors, no_gc, sequences, without_waits

# So many errors that most runs have some, and so few that most calls succeed.
RATES = {
    Fault.READ_ERROR: 0.05,
    Fault.ERROR_BEFORE: 0.1,
    Fault.ERROR_AFTER: 0.1,
    Fault.APPLIED_THEN_CONFLICT: 0.1,
    Fault.LATE: 0.1,
    Fault.THIRD_PARTY_BEFORE: 0.1,
    Fault.THIRD_PARTY_AFTER: 0.1,
}
Answer = TypeVar("Answer")

_numbers = itertools.count()


def location(sequence: int) -> str:
    return f"ingest/entry-{sequence}"


def is_injected(error: BaseException) -> bool:
    """Whether an error is the store's, and says nothing of the queue."""
    return isinstance(error, StorageError) and "injected" in str(error)


class ConsumerMachine(RuleBasedStateMachine):
    """Does to a consumer and to its model whatever one can do."""

    @initialize(seed=st.integers(0, 1 << 32), faulty=st.booleans())
    def start(self, seed: int, faulty: bool) -> None:
        self.below = open_store(f"memory://model-{next(_numbers)}")
        self.store = FaultyStore(self.below, seed, rates=RATES if faulty else {})
        self.is_faulty = faulty
        self.producer = BufferQueue(self.below, MANIFEST, "producer")
        self.model = Model()
        self.consumer = Consumer(self.below, no_gc())
        self.epoch = Manifest.read(self.below).epoch
        self.restart(last_acked=None, allow_gap=False)

    def attempt(self, call: Callable[[], Answer]) -> Answer | PenstockError:
        """Return what a call returns, or what it raises."""
        try:
            return call()
        except PenstockError as error:
            return error

    def fails_as_it_must(self, outcome: object) -> bool:
        """Settle a call that failed by a fault or by the fence; False where it went as the model says."""
        if isinstance(outcome, PenstockError) and is_injected(outcome):
            self.store.settle()
            # It may have seen the manifest before it failed, and may not.
            assert len(self.consumer) in {self.model.length, self.model.next - self.model.first}
            self.model.length = len(self.consumer)
            return True
        if self.model.is_fenced:
            assert isinstance(outcome, Fenced), outcome
            return True
        return False

    def is_written_or_not(self, through: int | None) -> None:
        """A write that failed has happened, or it has not; under a fence it has not."""
        if self.model.is_fenced:
            return  # and the manifest is compared after every step
        found = Manifest.read(self.below)
        first = found.groups["default"].acked_through + 1
        possible = {self.model.first, self.model.after_dequeue(through)}
        assert first in possible, (first, possible)
        self.model.first = first

    @rule(count=st.one_of(st.integers(1, 4), st.integers(30, 130)))
    def produce(self, count: int) -> None:
        first = self.model.next
        payloads = [b"payload %d" % sequence for sequence in range(first, first + count)]
        for sequence, payload in enumerate(payloads, first):
            self.below.put(location(sequence), encode_batch([payload]))
        entries = [NewEntry(location(first + n), (Metadata(0, 0),)) for n in range(count)]
        enqueue(self.producer, entries)
        self.model.payloads += payloads

    @rule()
    def next_batch(self) -> None:
        expected = self.model.after_cursor(1)
        outcome = self.attempt(self.consumer.next_batch)
        if self.fails_as_it_must(outcome):
            return
        if not expected:
            assert outcome is None
            self.model.seen()
        elif expected[0] in self.model.missing:
            assert isinstance(outcome, NotFound), outcome
            assert location(expected[0]) in str(outcome)
            self.model.seen()
        else:
            assert outcome is not None
            assert not isinstance(outcome, PenstockError), outcome
            assert (outcome.sequence, outcome.entries) == (expected[0], [self.model.payloads[expected[0]]])
            self.model.hand_out(expected)
            self.model.fetch(expected[0])

    @rule(most=st.one_of(st.integers(0, 5), st.integers(50, 150)))
    def next_descriptors(self, most: int) -> None:
        outcome = self.attempt(lambda: self.consumer.next_descriptors(most))
        if most == 0:
            assert outcome == []
            return
        if self.fails_as_it_must(outcome):
            return
        assert not isinstance(outcome, PenstockError), outcome
        expected = self.model.after_cursor(most)
        assert sequences(outcome) == expected
        assert [entry.location for entry in outcome] == [location(sequence) for sequence in expected]
        self.model.hand_out(expected)

    @rule(most=st.one_of(st.integers(1, 4), st.integers(50, 150)))
    def ack_in_order(self, most: int) -> None:
        for _ in range(most):
            due = self.model.due
            if due is None:
                return
            outcome = self.attempt(lambda due=due: self.consumer.ack(due))  # type: ignore[misc]
            self.model.acked = due
            self.model.unwritten += 1
            if self.model.unwritten < ACKS_PER_WRITE:
                assert outcome is None, outcome
            elif self.fails_as_it_must(outcome):
                self.is_written_or_not(due)
            else:
                assert outcome is None, outcome
                self.model.dequeue(due)

    @rule(sequence=st.integers(0, 400))
    def ack_out_of_order(self, sequence: int) -> None:
        if sequence != self.model.due:
            assert isinstance(self.attempt(lambda: self.consumer.ack(sequence)), OutOfOrderAck)

    @rule(sequence=st.integers(0, 400))
    def ack_through_anything(self, sequence: int) -> None:
        self.ack_through(sequence)

    @rule(offset=st.integers(0, 30))
    def ack_through_what_was_handed_out(self, offset: int) -> None:
        if self.model.due is not None and self.model.handed_out is not None:
            self.ack_through(min(self.model.due + offset, self.model.handed_out))

    def ack_through(self, sequence: int) -> None:
        outcome = self.attempt(lambda: self.consumer.ack_through(sequence))
        if not self.model.may_ack_through(sequence):
            assert isinstance(outcome, OutOfOrderAck), outcome
        elif self.fails_as_it_must(outcome):
            self.is_written_or_not(sequence)
        else:
            assert outcome is None, outcome
            self.model.dequeue(sequence)
            self.model.acked = sequence

    @rule()
    def flush(self) -> None:
        outcome = self.attempt(self.consumer.flush)
        if self.fails_as_it_must(outcome):
            self.is_written_or_not(self.model.acked)
        else:
            assert outcome is None, outcome
            self.model.dequeue(self.model.acked)

    @rule(last_acked=st.one_of(st.none(), st.integers(0, 400)), allow_gap=st.booleans())
    def restart_anywhere(self, last_acked: int | None, allow_gap: bool) -> None:
        self.restart(last_acked, allow_gap)

    def open(self, last_acked: int | None, *, allow_gap: bool) -> Consumer:
        return Consumer(self.store, no_gc(), last_acked, allow_gap=allow_gap, queue=without_waits(self.store))

    @rule()
    def restart_where_it_was(self) -> None:
        self.restart(self.model.acked, allow_gap=False)

    def restart(self, last_acked: int | None, allow_gap: bool) -> None:
        outcome = self.attempt(lambda: self.open(last_acked, allow_gap=allow_gap))
        if self.model.skips_entries(last_acked) and not allow_gap:
            assert isinstance(outcome, InvalidInput), outcome
            return
        assert isinstance(outcome, Consumer), outcome
        self.consumer = outcome
        self.model.start_again(last_acked)
        found = Manifest.read(self.below).epoch
        assert found > self.epoch  # by more than one where an epoch was burnt
        self.epoch = found

    @rule()
    def rival(self) -> None:
        Consumer(self.below, no_gc())
        self.epoch += 1
        self.model.is_fenced = True

    @precondition(lambda self: self.model.kept)
    @rule(data=st.data())
    def lose_an_object(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.model.kept[:3]))
        self.below.delete([location(sequence)])
        self.model.missing.add(sequence)

    @precondition(lambda self: self.model.missing)
    @rule()
    def bring_back_all_objects(self) -> None:
        for sequence in self.model.missing:
            self.below.put(location(sequence), encode_batch([self.model.payloads[sequence]]))
        self.model.missing.clear()

    @invariant()
    def the_cursors_are_those_of_the_model(self) -> None:
        model = self.model
        assert cursors(self.consumer) == Cursors(model.acked, model.fetched, model.handed_out)
        assert len(self.consumer) == model.length

    @invariant()
    def the_manifest_is_that_of_the_model(self) -> None:
        found = Manifest.read(self.below)
        first = found.next_sequence - len(found.entries)
        assert found.groups["default"].acked_through + 1 == self.model.first
        # A segment that cannot be read is not narrowed by an ack; the next one does it.
        may_be_wide = found.head is not None and found.head.segments and self.is_faulty
        assert first <= self.model.first if may_be_wide else first == self.model.first
        assert sequences(found.entries) == list(range(first, self.model.next))
        assert (found.epoch, found.next_sequence) == (self.epoch, self.model.next)
        assert all(entry.location == location(entry.sequence) for entry in found.entries)


@pytest.mark.parametrize(
    ("examples", "steps"),
    [
        (8, 40),
        pytest.param(60, 40, marks=pytest.mark.slow),
        pytest.param(1500, 80, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)]),
    ],
)
def test_a_consumer_does_what_its_model_does(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ConsumerMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
