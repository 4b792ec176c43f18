"""What the events of a metadata partition add up to."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidTransition
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentEvent,
    SegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from penstock.metalog.catalog.segment_view import SegmentView
from tests.metalog.catalog.events import (
    DELETED,
    DELETING,
    DELETION_FINISHED,
    DELETION_STARTED,
    FINISHED,
    MARKED,
    STARTED,
    TP,
    contents,
    deletion,
    in_state,
    segment,
    update,
)

ALLOWED = {
    (STARTED, FINISHED),
    (STARTED, DELETING),
    (FINISHED, DELETING),
    (DELETING, DELETED),
} | {(state, state) for state in SegmentState}


def view_of(*events: SegmentEvent) -> SegmentView:
    view = SegmentView()
    for event in events:
        view.apply(event)
    return view


def is_allowed(view: SegmentView, event: SegmentEvent) -> bool:
    before = contents(view)
    try:
        view.apply(event)
    except InvalidTransition:
        assert contents(view) == before, "a refused event changed something"
        return False
    return True


def test_a_deleted_partition_has_no_segments_and_takes_none() -> None:
    view = view_of(*in_state(1, FINISHED), *in_state(2, DELETED), deletion(MARKED), deletion(DELETION_STARTED))
    assert len(view.segments(TP)) == 1
    assert is_allowed(view, segment(3))
    view.apply(deletion(DELETION_FINISHED))
    assert view.segments(TP) == view.segments_by_epoch(TP, 0) == []
    assert (view.segment_for(TP, 0, 150), view.highest_offset(TP, 0)) == (None, None)
    assert list(view.events()) == [deletion(DELETION_FINISHED)]
    assert not is_allowed(view, segment(4))
    assert not is_allowed(view, update(2, DELETED))


def test_deleted_segments_are_not_listed_and_others_are_by_start_offset() -> None:
    view = view_of(*in_state(4, DELETING), *in_state(3, DELETED), *in_state(2, FINISHED), *in_state(1, STARTED))
    assert [(one.id.id.int, one.state) for one in view.segments(TP)] == [(1, STARTED), (2, FINISHED), (4, DELETING)]
    assert view.segments_by_epoch(TP, 0) == view.segments(TP)
    assert view.segments_by_epoch(TP, 1) == []


def test_an_epoch_has_what_lies_before_the_next_epoch_of_its_segment() -> None:
    one = segment(1, 100, 199, {2: 100, 5: 150, 7: 180})
    view = view_of(one, update(1, FINISHED))
    found = {(epoch, at) for epoch in range(9) for at in range(90, 210) if view.segment_for(TP, epoch, at)}
    ranges = {2: range(100, 150), 5: range(150, 180), 7: range(180, 200)}
    assert found == {(epoch, at) for epoch, ats in ranges.items() for at in ats}
    assert [view.highest_offset(TP, epoch) for epoch in (2, 5, 7, 3)] == [149, 179, 199, None]


def test_a_segment_answers_for_no_offset_that_it_does_not_have() -> None:
    view = SegmentView()
    for number in (1, 2, 3):
        view.apply(segment(number, 100 * number, 100 * number + 99, {0: 0, 1: 150, 2: 900}))
        view.apply(update(number, FINISHED))
    found = {(epoch, at): view.segment_for(TP, epoch, at) for epoch in range(3) for at in range(0, 1000, 50)}
    numbers = {asked: one.id.id.int for asked, one in found.items() if one is not None}
    assert numbers == {(0, 100): 1, (1, 150): 1, (1, 200): 2, (1, 250): 2, (1, 300): 3, (1, 350): 3}
    assert [view.highest_offset(TP, epoch) for epoch in range(3)] == [149, 399, None]


def test_a_longer_segment_is_found_behind_a_shorter_one_inside_it() -> None:
    view = view_of(segment(1, 0, 99), update(1, FINISHED), segment(2, 10, 19), update(2, FINISHED))
    found = [view.segment_for(TP, 0, at) for at in (9, 10, 19, 20, 99)]
    assert [one and one.id.id.int for one in found] == [1, 2, 2, 1, 1]
    assert view.segment_for(TP, 0, 100) is None


def test_an_update_is_seen_in_what_is_found() -> None:
    view = view_of(segment(1), update(1, FINISHED))
    found = view.segment_for(TP, 0, 5)
    assert found is not None
    assert (found.broker_id, found.event_timestamp_ms, found.state) == (2, 9, FINISHED)


# A model: one dictionary of states, and searches that look at everything.

TPS = [TP, TopicIdPartition(UUID(int=2), "other", 3)]
numbers = st.integers(1, 4)
tps = st.sampled_from(TPS)


@st.composite
def segments(draw: st.DrawFn) -> SegmentMetadata:
    start = draw(st.integers(0, 20))
    end = draw(st.integers(start, 25))
    starts = draw(st.lists(st.integers(start, end), max_size=2).map(lambda more: sorted([start, *more])))
    if draw(st.integers(0, 3)) == 0:  # an epoch may also be said to begin where the segment has nothing
        starts = sorted(draw(st.lists(st.integers(-3, 28), min_size=1, max_size=3)))
    epochs = dict(zip(sorted(draw(st.sets(st.integers(0, 3), min_size=3, max_size=3))), starts, strict=False))
    state = draw(st.sampled_from([STARTED] * 9 + [FINISHED]))
    return segment(draw(numbers), start, end, epochs, draw(tps), state)


updates = st.builds(update, numbers, st.sampled_from(SegmentState), tps)
deletions = st.builds(deletion, st.sampled_from(PartitionDeleteState), tps)
histories = st.lists(st.one_of(segments(), updates, updates, updates, deletions), max_size=40)


def offsets_of(one: SegmentMetadata) -> range:
    return range(one.start_offset, one.end_offset + 1)


class Model:
    def __init__(self) -> None:
        self.segments: dict[object, SegmentMetadata] = {}
        self.deletions: dict[TopicIdPartition, PartitionDeleteState] = {}

    def takes(self, event: SegmentEvent) -> bool:
        if isinstance(event, PartitionDelete):
            return self._takes_deletion(event)
        if self.deletions.get(event.id.topic_id_partition) is DELETION_FINISHED:
            return False
        now = self.segments.get(event.id)
        if isinstance(event, SegmentMetadata):
            if now is None and event.state is STARTED:
                self.segments[event.id] = event
            return event.state is STARTED and (now is None or now.state is STARTED)
        if now is None or (now.state, event.state) not in ALLOWED:
            return False
        if now.state is not event.state:
            self.segments[event.id] = now.with_update(event)
        return True

    def _takes_deletion(self, event: PartitionDelete) -> bool:
        now = self.deletions.get(event.topic_id_partition, -1)
        if event.state - now not in (0, 1):
            return False
        self.deletions[event.topic_id_partition] = event.state
        if event.state is DELETION_FINISHED:
            for name in [one.id for one in self.not_deleted(event.topic_id_partition, all_states=True)]:
                del self.segments[name]
        return True

    def not_deleted(self, tp: TopicIdPartition, *, all_states: bool = False) -> list[SegmentMetadata]:
        ours = [one for one in self.segments.values() if one.id.topic_id_partition == tp]
        return [one for one in ours if all_states or one.state is not DELETED]

    def ranges(self, tp: TopicIdPartition, epoch: int) -> list[tuple[int, int, int, SegmentMetadata]]:
        found = []
        for one in self.not_deleted(tp):
            if one.state is FINISHED and epoch in one.segment_leader_epochs:
                later = [at for other, at in one.segment_leader_epochs.items() if other > epoch]
                has = [at for at in range(one.segment_leader_epochs[epoch], min([*later, 99])) if at in offsets_of(one)]
                if has:
                    found.append((has[0], has[-1], one.id.id.int, one))
        return found


@settings(max_examples=3 * settings().max_examples)
@given(histories)
def test_any_history_adds_up_to_what_the_model_says(history: list[SegmentEvent]) -> None:
    view, model = SegmentView(), Model()
    for event in history:
        assert is_allowed(view, event) == model.takes(event), event
    restored = SegmentView.of(view.events())
    assert contents(restored) == contents(view)
    for one in (view, restored):
        for tp in TPS:
            assert_same(one, model, tp)
    # The ids of deleted segments are restored too: the same events are allowed later.
    for name in [update(number, DELETED, tp) for number in range(1, 5) for tp in TPS]:
        assert is_allowed(restored, name) == is_allowed(view, name)


def assert_same(view: SegmentView, model: Model, tp: TopicIdPartition) -> None:
    listed = sorted(model.not_deleted(tp), key=lambda one: (one.start_offset, one.end_offset, one.id.id.int))
    assert view.segments(tp) == listed
    for epoch in range(4):
        assert view.segments_by_epoch(tp, epoch) == [one for one in listed if epoch in one.segment_leader_epochs]
        ranges = model.ranges(tp, epoch)
        assert view.highest_offset(tp, epoch) == max((end for _, end, _, _ in ranges), default=None)
        for offset in range(-1, 27):
            holding = [one for one in ranges if one[0] <= offset <= one[1]]
            best = max(holding, key=lambda one: one[:3])[3] if holding else None
            assert view.segment_for(tp, epoch, offset) == best
