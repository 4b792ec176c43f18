"""Segments and their events as values: what they refuse, what makes two the same, and which state may follow which."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from penstock.errors import InvalidInput, InvalidTransition
from penstock.metalog.catalog import segment as module
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
OTHER = UUID("01234567-89ab-cdef-fedc-ba9876543210")
TP = TopicIdPartition(TOPIC, "orders", 3)
ID = SegmentId(TP, OTHER)

COPYING, COPIED, DELETING, DELETED = SegmentState
MARKED, STARTED, FINISHED = PartitionDeleteState

I32, I64 = (1 << 31) - 1, (1 << 63) - 1


def metadata(**changes: Any) -> SegmentMetadata:
    plain = SegmentMetadata(ID, 100, 199, 17, 5, 18, 1024, COPYING, {0: 100})
    return dataclasses.replace(plain, **changes)


UPDATE = SegmentUpdate(ID, 20, COPIED, 6)
DELETE = PartitionDelete(TP, MARKED, 20, 6)


def test_the_states_have_the_numbers_of_the_wire() -> None:
    assert {state.name: int(state) for state in SegmentState} == {
        "COPY_SEGMENT_STARTED": 0,
        "COPY_SEGMENT_FINISHED": 1,
        "DELETE_SEGMENT_STARTED": 2,
        "DELETE_SEGMENT_FINISHED": 3,
    }
    assert {state.name: int(state) for state in PartitionDeleteState} == {"MARKED": 0, "STARTED": 1, "FINISHED": 2}


STEPS: dict[Any, set[Any]] = {
    SegmentState: {(None, COPYING), (COPYING, COPIED), (COPYING, DELETING), (COPIED, DELETING), (DELETING, DELETED)},
    PartitionDeleteState: {(None, MARKED), (MARKED, STARTED), (STARTED, FINISHED)},
}


@pytest.mark.parametrize("states", [SegmentState, PartitionDeleteState])
def test_a_state_becomes_what_may_follow_it_and_nothing_else(states: Any) -> None:
    for before, after in itertools.product([None, *states], states):
        is_step = (before, after) in STEPS[states]
        assert before is None or before.can_become(after) is is_step
        if is_step or before is after:
            assert after.follows(before) is is_step
            continue
        name = "has no state yet" if before is None else f"is {before.name}"
        with pytest.raises(InvalidTransition, match=f"{name} cannot become {after.name}"):
            after.follows(before)


def test_a_renamed_topic_is_the_same() -> None:
    renamed = TopicIdPartition(TOPIC, "sales", 3)
    assert renamed == TP
    assert hash(renamed) == hash(TP)
    assert {ID: "found"}[SegmentId(renamed, OTHER)] == "found"
    assert renamed.topic == "sales"


@pytest.mark.parametrize("other", [TopicIdPartition(OTHER, "orders", 3), TopicIdPartition(TOPIC, "orders", 4)])
def test_another_id_or_partition_is_another(other: TopicIdPartition) -> None:
    assert other != TP
    assert SegmentId(other, OTHER) != ID


def test_a_segment_of_another_id_is_another() -> None:
    assert SegmentId(TP, TOPIC) != ID


@pytest.mark.parametrize("event", [metadata(), UPDATE, DELETE])
def test_an_event_differs_from_another_in_any_field(event: Any) -> None:
    others: dict[str, Any] = {
        "id": SegmentId(TP, TOPIC),
        "topic_id_partition": TopicIdPartition(OTHER, "orders", 3),
        "state": STARTED if isinstance(event, PartitionDelete) else DELETING,
        "segment_leader_epochs": {0: 101},
        "custom_metadata": b"",
        "txn_index_empty": True,
    }
    for field in dataclasses.fields(event):
        value = others.get(field.name, 101)
        assert dataclasses.replace(event, **{field.name: value}) != event, field.name


@pytest.mark.parametrize("event", [metadata(custom_metadata=b"x", txn_index_empty=True), UPDATE, DELETE])
def test_a_copy_is_equal_and_has_the_same_hash(event: Any) -> None:
    for same in (pickle.loads(pickle.dumps(event)), copy.copy(event), copy.deepcopy(event), dataclasses.replace(event)):
        assert same == event
        assert hash(same) == hash(event)
        assert type(same) is type(event)


@pytest.mark.parametrize("event", [metadata(), UPDATE, DELETE, TP, ID])
def test_a_value_cannot_be_changed(event: Any) -> None:
    for field in dataclasses.fields(event):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, None)
    assert not hasattr(event, "__dict__")


def test_the_epochs_are_a_copy_in_ascending_order_that_cannot_be_changed() -> None:
    given = {9: 180, 2: 100}
    segment = metadata(segment_leader_epochs=given)
    given[3] = 0
    assert list(segment.segment_leader_epochs.items()) == [(2, 100), (9, 180)]
    assert segment.segment_leader_epochs == {2: 100, 9: 180}
    with pytest.raises(TypeError):
        segment.segment_leader_epochs[3] = 0  # type: ignore[index]
    again = pickle.loads(pickle.dumps(segment)).segment_leader_epochs
    with pytest.raises(TypeError):
        again[3] = 0


def test_any_mapping_of_epochs_is_taken() -> None:
    class Epochs(Mapping[int, int]):
        def __getitem__(self, epoch: int) -> int:
            return {4: 100}[epoch]

        def __iter__(self) -> Any:
            return iter([4])

        def __len__(self) -> int:
            return 1

    assert metadata(segment_leader_epochs=Epochs()).segment_leader_epochs == {4: 100}


@pytest.mark.parametrize("given", [bytearray(b"ab"), memoryview(b"ab"), b"ab"])
def test_custom_metadata_is_kept_as_bytes(given: Any) -> None:
    for event in (metadata(custom_metadata=given), dataclasses.replace(UPDATE, custom_metadata=given)):
        assert type(event.custom_metadata) is bytes
        assert event.custom_metadata == b"ab"


def test_empty_custom_metadata_is_not_none() -> None:
    assert metadata(custom_metadata=b"").custom_metadata == b""
    assert metadata(custom_metadata=b"") != metadata()


WRONG: list[tuple[Any, dict[str, list[object]]]] = [
    (
        metadata(),
        {
            "id": [OTHER, TP, str(OTHER), None],
            "start_offset": [-I64 - 2, I64 + 1, 1.0, "1", None, True],
            "end_offset": [99, I64 + 1, 199.0, None, True],
            "max_timestamp_ms": [-I64 - 2, I64 + 1, 1.0, "1", None, True],
            "broker_id": [-I32 - 2, I32 + 1, 1.0, None, False],
            "event_timestamp_ms": [-I64 - 2, I64 + 1, 1.0, "1", None, True],
            "segment_size_in_bytes": [-1, I32 + 1, 1.0, None, True],
            "state": [0, "COPY_SEGMENT_STARTED", MARKED, None, 4],
            "segment_leader_epochs": [{}, None, [(0, 100)], 0],
            "an epoch in segment_leader_epochs": [{-I32 - 2: 0}, {I32 + 1: 0}, {"0": 0}, {True: 0}],
            "an offset in segment_leader_epochs": [{0: I64 + 1}, {0: -I64 - 2}, {0: "0"}, {0: False}, {0: None}],
            "custom_metadata": ["text", 5, [1]],
            "txn_index_empty": [0, 1, None, "no"],
        },
    ),
    (
        UPDATE,
        {
            "id": [TP],
            "event_timestamp_ms": [I64 + 1],
            "state": [1, STARTED],
            "broker_id": [I32 + 1, True],
            "custom_metadata": ["text"],
        },
    ),
    (
        DELETE,
        {
            "topic_id_partition": [ID],
            "event_timestamp_ms": [-I64 - 2],
            "state": [0, COPYING],
            "broker_id": [-I32 - 2, False],
        },
    ),
    (
        TP,
        {
            "topic_id": [str(TOPIC), TOPIC.bytes, None],
            "topic": [None, b"orders", "lone \ud800", "x" * 32_768, "é" * 16_384],
            "partition": ["3", True, I32 + 1, -I32 - 2],
        },
    ),
    (ID, {"topic_id_partition": [TOPIC], "id": [str(OTHER), 7]}),
]


@pytest.mark.parametrize(("valid", "wrong"), WRONG, ids=[type(valid).__name__ for valid, _ in WRONG])
def test_a_value_that_cannot_be_is_refused_with_the_name_of_the_field(valid: Any, wrong: dict[str, Any]) -> None:
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidInput, match=rf"^{name} must "):
                dataclasses.replace(valid, **{name.split()[-1]: value})


def test_custom_metadata_beyond_what_a_length_can_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MAX_CUSTOM_METADATA_BYTES == (1 << 31) - 2
    monkeypatch.setattr(module, "MAX_CUSTOM_METADATA_BYTES", 3)
    assert metadata(custom_metadata=b"abc").custom_metadata == b"abc"
    with pytest.raises(InvalidInput, match="custom_metadata must have at most 3 bytes, not 4"):
        metadata(custom_metadata=b"abcd")


def test_every_number_may_be_as_small_and_as_large_as_the_wire_allows() -> None:
    low, high = -I64 - 1, I64
    metadata(start_offset=low, end_offset=low, max_timestamp_ms=low, event_timestamp_ms=low, broker_id=-I32 - 1)
    metadata(start_offset=high, end_offset=high, max_timestamp_ms=high, event_timestamp_ms=high, broker_id=I32)
    metadata(segment_size_in_bytes=0, segment_leader_epochs={-I32 - 1: low, I32: high})
    metadata(segment_size_in_bytes=I32)
    TopicIdPartition(TOPIC, "x" * 32_767, I32)
    TopicIdPartition(TOPIC, "", -I32 - 1)


def test_an_update_replaces_state_broker_time_and_custom_metadata() -> None:
    before = metadata(custom_metadata=b"old", txn_index_empty=True, segment_leader_epochs={1: 100, 2: 150})
    update = SegmentUpdate(ID, 77, COPIED, 9, b"new")
    assert before.with_update(update) == dataclasses.replace(
        before, event_timestamp_ms=77, state=COPIED, broker_id=9, custom_metadata=b"new"
    )
    assert before.custom_metadata == b"old"


@pytest.mark.parametrize("custom", [None, b""])
def test_an_update_without_custom_metadata_takes_it_away(custom: bytes | None) -> None:
    after = metadata(custom_metadata=b"old").with_update(dataclasses.replace(UPDATE, custom_metadata=custom))
    assert after.custom_metadata == custom


def test_an_update_of_another_segment_is_refused() -> None:
    with pytest.raises(InvalidInput, match=f"update must be of the segment {OTHER}"):
        metadata().with_update(dataclasses.replace(UPDATE, id=SegmentId(TP, TOPIC)))


def test_an_update_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="update must be a SegmentUpdate"):
        metadata().with_update(DELETE)  # type: ignore[arg-type]


def test_an_update_under_a_new_name_of_the_topic_is_of_the_same_segment() -> None:
    renamed = SegmentId(TopicIdPartition(TOPIC, "sales", 3), OTHER)
    assert metadata().with_update(dataclasses.replace(UPDATE, id=renamed)).state is COPIED
