"""`produce_json`: objects as JSON, one entry each."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from penstock import ObjectStore
from penstock.errors import InvalidInput
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import entries, queue


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize("one", [{"a": 1, "ü": [None, True, "x"]}, "text", 5, None, (1, 2)], ids=repr)
def test_one_object_is_one_entry(memory: ObjectStore, open_producer: OpenProducer, one: object) -> None:
    producer = open_producer(memory)
    producer.produce_json(one)
    producer.flush()
    assert [json.loads(entry) for entry in entries(memory)] == [list(one) if isinstance(one, tuple) else one]


def test_each_object_of_a_list_is_an_entry(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store)
    producer.produce_json([{"n": 1}, {"n": 2}, [3]])
    producer.flush()
    assert [json.loads(entry) for entry in entries(store)] == [{"n": 1}, {"n": 2}, [3]]


def test_it_writes_utf_8(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory)
    producer.produce_json({"straße": "🌊"})
    producer.flush()
    assert entries(memory) == ['{"straße":"🌊"}'.encode()]


def test_dates_uuids_and_dataclasses_have_a_form_in_json(memory: ObjectStore, open_producer: OpenProducer) -> None:
    number = uuid.UUID(int=7)
    producer = open_producer(memory)
    producer.produce_json([datetime(2026, 1, 2, tzinfo=UTC), number, Point(1, 2)])
    producer.flush()
    assert [json.loads(entry) for entry in entries(memory)] == ["2026-01-02T00:00:00Z", str(number), {"x": 1, "y": 2}]


def test_metadata_go_with_it(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory)
    producer.produce_json({"a": 1}, b"from here")
    producer.flush()
    assert queue(memory)[0].metadata[0].payload == b"from here"


def endless() -> list[object]:
    turning: list[object] = []
    turning.append(turning)
    return [turning]


@pytest.mark.parametrize(
    "bad",
    [object(), [{"good": 1}, object()], {"a": object()}, {(1, 2): 3}, "\ud800", endless()],
    ids=["an object", "one of a list", "a value", "a key", "a lone surrogate", "an endless list"],
)
def test_what_has_no_form_in_json_is_refused_and_nothing_is_produced(
    memory: ObjectStore, open_producer: OpenProducer, bad: object
) -> None:
    producer = open_producer(memory)
    with pytest.raises(InvalidInput, match="JSON"):
        producer.produce_json(bad)
    producer.flush()
    assert queue(memory) == ()


def test_an_empty_list_is_refused(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        open_producer(memory).produce_json([])
