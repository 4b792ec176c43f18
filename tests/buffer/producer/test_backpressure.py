"""A full buffer blocks `produce`: by calls, by bytes and by entries. What was refused leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import ObjectStore, Record
from penstock.buffer.producer.write_handle import Outcome
from penstock.errors import BackpressureTimeout, StorageError
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import entries
from tests.support.call_hooks import hooks_at
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Gate


@pytest.mark.parametrize("given", [b"x", "x", [b"x"]], ids=["bytes", "text", "a list"])
@pytest.mark.parametrize("most", [1, 2, 7])
def test_calls_are_accepted_up_to_the_limit(
    hanging: HookedStore, open_producer: OpenProducer, most: int, given: bytes | str | list[bytes]
) -> None:
    producer = open_producer(hanging, max_buffered_inputs=most)
    for _ in range(most):
        producer.produce(given, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(given, timeout=0)


def test_calls_under_way_count_as_those_of_the_open_batch_do(hanging: HookedStore, open_producer: OpenProducer) -> None:
    producer = open_producer(hanging, max_buffered_inputs=6, flush_size_bytes=2)
    for _ in range(6):
        producer.produce(b"x", timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x", timeout=0)


@pytest.mark.parametrize("size", [1, 5000], ids=["small entries", "large entries"])
def test_bytes_are_accepted_up_to_the_limit(hanging: HookedStore, open_producer: OpenProducer, size: int) -> None:
    producer = open_producer(hanging, max_buffered_bytes=10 * size)
    for _ in range(10):
        producer.produce(b"x" * size, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x", timeout=0)


@pytest.mark.parametrize("settings", [{"max_buffered_inputs": 11}, {"max_buffered_bytes": 110}], ids=["calls", "bytes"])
def test_small_calls_do_not_use_the_space_of_batches_under_way(
    hanging: HookedStore, open_producer: OpenProducer, settings: dict[str, Any]
) -> None:
    producer = open_producer(hanging, flush_size_bytes=100, **settings)
    producer.produce(b"x" * 100, timeout=0)
    for _ in range(10):
        producer.produce(b"x", timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x", timeout=0)


def test_what_fits_exactly_beside_batches_under_way_is_accepted(
    hanging: HookedStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=10, flush_size_bytes=4)
    producer.produce(b"x" * 4, timeout=0)
    producer.produce(b"x" * 6, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"", b"x", timeout=0)


@pytest.mark.parametrize(
    ("settings", "large", "rest"),
    [
        ({"max_buffered_inputs": 2}, [b"x"], [b"x"]),
        ({"max_buffered_bytes": 10}, [b"x" * 10], [b"x" * 9]),
        ({"max_buffered_bytes": 10}, [b""] * (1 << 20), [b""] * ((1 << 20) - 1)),
    ],
    ids=["calls", "bytes", "entries"],
)
def test_batches_that_are_done_do_not_count(
    memory: ObjectStore,
    open_producer: OpenProducer,
    gate: Gate,
    settings: dict[str, Any],
    large: list[bytes],
    rest: list[bytes],
) -> None:
    store = HookedStore(memory)
    store.before("write data", gate, skip=1)
    producer = open_producer(store, **settings)
    producer.produce(large, timeout=0)
    producer.flush()
    producer.produce(b"x", timeout=0)
    producer.produce(rest, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce([b"x"], timeout=0)


def test_metadata_count_too(hanging: HookedStore, open_producer: OpenProducer) -> None:
    producer = open_producer(hanging, max_buffered_bytes=100)
    producer.produce(b"x", b"y" * 99, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"x", timeout=0)


@pytest.mark.parametrize(("many", "times"), [(1 << 19, 2), (3 << 16, 5)])
def test_empty_entries_count_too(hanging: HookedStore, open_producer: OpenProducer, many: int, times: int) -> None:
    producer = open_producer(hanging, max_buffered_bytes=100)  # a million of them pass always
    for _ in range(times):
        producer.produce([b""] * many, timeout=0)
    with pytest.raises(BackpressureTimeout):
        producer.produce([b""] * many, timeout=0)


def test_empty_headers_count_too(hanging: HookedStore, open_producer: OpenProducer) -> None:
    producer = open_producer(hanging, max_buffered_bytes=1 << 20, format="arrow")
    record = Record(
        b"", headers=[("", b"")] * (1 << 17)
    )  # at least 8 bytes each in columns: as many as the limit allows

    def fill() -> None:
        for _ in range(10):
            producer.produce(record, timeout=0)

    with pytest.raises(BackpressureTimeout):
        fill()


def test_a_call_that_was_refused_produces_nothing(
    memory: ObjectStore, hanging: HookedStore, gate: Gate, open_producer: OpenProducer
) -> None:
    producer = open_producer(hanging, max_buffered_inputs=2)
    for given in (b"0", b"1"):
        producer.produce(given)
    for given in (b"no", [b"not", b"these"], "nor this"):  # type: ignore[assignment]  # every shape
        with pytest.raises(BackpressureTimeout):
            producer.produce(given, b"metadata", timeout=0.001)
    gate.open()
    producer.produce(b"2", timeout=PATIENCE)
    producer.flush()
    assert entries(memory) == [b"0", b"1", b"2"]


def test_a_call_that_was_refused_can_be_repeated(
    memory: ObjectStore, hanging: HookedStore, gate: Gate, open_producer: OpenProducer
) -> None:
    producer = open_producer(hanging, max_buffered_bytes=10)
    producer.produce(b"0" * 10)
    with pytest.raises(BackpressureTimeout):
        producer.produce(b"1" * 10, timeout=0)
    gate.open()
    producer.produce(b"1" * 10, timeout=PATIENCE)
    producer.flush()
    assert entries(memory) == [b"0" * 10, b"1" * 10]


def test_when_a_handle_is_done_its_space_is_free(memory: ObjectStore, open_producer: OpenProducer, gate: Gate) -> None:
    with hooks_at(Outcome.succeed, after=gate):
        producer = open_producer(memory, max_buffered_inputs=1, flush_size_bytes=1)
        producer.produce(b"0").result(PATIENCE)
        gate.wait_for_arrival()
    calling = Background(lambda: producer.produce(b"1", timeout=0))
    calling.has_ended_within(A_WHILE)
    gate.open()
    calling.result()


def test_a_batch_that_fails_frees_its_space(memory: ObjectStore, open_producer: OpenProducer, gate: Gate) -> None:
    def refuse() -> None:
        raise StorageError("no")

    store = HookedStore(memory)
    store.before("write data", gate, times=1)
    store.before("write data", refuse, times=1)
    producer = open_producer(store, max_buffered_inputs=1)
    failing = producer.produce(b"lost")
    blocked = Background(lambda: producer.produce(b"kept"))
    gate.wait_for_arrival()
    gate.open()
    blocked.result()
    with pytest.raises(StorageError):
        failing.result(PATIENCE)
    producer.flush()
    assert entries(memory) == [b"kept"]


def test_the_error_says_how_much_is_under_way(hanging: HookedStore, open_producer: OpenProducer) -> None:
    producer = open_producer(hanging, max_buffered_inputs=3)
    for _ in range(3):
        producer.produce(b"four")
    with pytest.raises(BackpressureTimeout, match="3 calls with 12 bytes are on their way; nothing was taken"):
        producer.produce(b"x", timeout=0)
