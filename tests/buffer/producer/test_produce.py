"""What `produce` takes as entries, what it refuses, and that what is refused leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, ObjectStore, Record, peek
from penstock.errors import InvalidInput
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import batches, data_objects, entries, queue

FULL = Record(b"r", key=b"k", headers=[("h", b"1"), ("a", b""), ("h", b"2")], timestamp_ms=7)


def generated() -> Iterator[bytes | str | Record]:
    yield b"one"
    yield "zwö"
    yield FULL


ACCEPTED: dict[str, tuple[Callable[[], Any], list[Record]]] = {
    "bytes": (lambda: b"one", [Record(b"one")]),
    "empty bytes": (lambda: b"", [Record(b"")]),
    "text": (lambda: "grüße 🌊", [Record("grüße 🌊".encode())]),
    "an empty text": (lambda: "", [Record(b"")]),
    "a record": (lambda: FULL, [FULL]),
    "a record with nothing in it": (lambda: Record(b""), [Record(b"")]),
    "a list of bytes": (lambda: [b"one", b"", b"two"], [Record(b"one"), Record(b""), Record(b"two")]),
    "a list of empty entries": (lambda: [b"", "", Record(b"")], [Record(b"")] * 3),
    "a list of texts": (lambda: ["ä", "b"], [Record("ä".encode()), Record(b"b")]),
    "a list of records": (lambda: [FULL, Record(b"plain")], [FULL, Record(b"plain")]),
    "a list of all of them": (lambda: [b"1", "2", FULL], [Record(b"1"), Record(b"2"), FULL]),
    "a tuple": (lambda: (b"one", "two"), [Record(b"one"), Record(b"two")]),
    "a generator": (generated, [Record(b"one"), Record("zwö".encode()), FULL]),
}

REFUSED: dict[str, Callable[[], Any]] = {
    "an empty list": list,
    "an empty tuple": lambda: (),
    "an empty generator": lambda: iter(()),
    "nothing": lambda: None,
    "a number": lambda: 5,
    "a list with a number": lambda: [b"good", 5],
    "a list with nothing in it": lambda: [b"good", None],
    "a list in a list": lambda: [[b"good"]],
    "a list with a dict": lambda: [{"a": 1}],
    "text that is no UTF-8": lambda: "\ud800",
    "a list with text that is no UTF-8": lambda: ["good", "\ud800"],
    "bytes and text that is no UTF-8": lambda: [b"good", "\ud800"],
}


@pytest.mark.parametrize("shape", ACCEPTED)
def test_what_is_produced_can_be_read(store: ObjectStore, open_producer: OpenProducer, shape: str) -> None:
    given, expected = ACCEPTED[shape]
    producer = open_producer(store, format="arrow")
    producer.produce(given())
    producer.flush()
    assert peek(store) == expected


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("form", ["arrow", "opendata"])
def test_calls_of_every_shape_share_a_batch_in_their_order(
    store: ObjectStore, open_producer: OpenProducer, form: str, compression: str
) -> None:
    producer = open_producer(store, format=form, compression=compression)
    for given in (b"0", [b"1", b"2"], "3", b"4", ("5", Record(b"6")), Record(b"7"), b"8"):
        producer.produce(given)
    producer.flush()
    assert batches(store) == [[b"%d" % number for number in range(9)]]


def test_records_keep_what_they_have_beside_calls_that_have_less(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(memory, format="arrow")
    keyed, timed = Record(b"b", key=b""), Record(b"d", timestamp_ms=-1)
    for given in (b"a", [keyed, FULL], [b"c"], timed, [Record(b"e", headers=[])]):
        producer.produce(given)
    producer.flush()
    assert peek(memory) == [Record(b"a"), keyed, FULL, Record(b"c"), timed, Record(b"e", headers=[])]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_buffer_may_change_after_produce_returned(
    memory: ObjectStore, open_producer: OpenProducer, kind: type[bytearray] | type[memoryview]
) -> None:
    given = kind(bytearray(b"abc"))
    producer = open_producer(memory)
    producer.produce(given)  # type: ignore[arg-type]  # not in the signature, and accepted
    given[0] = ord("X")
    producer.flush()
    assert entries(memory) == [b"abc"]


def test_a_list_may_change_after_produce_returned(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory)
    given: list[bytes | str | Record] = [b"a", "b"]
    producer.produce(given)
    given.clear()
    producer.flush()
    assert entries(memory) == [b"a", b"b"]


@pytest.mark.parametrize("shape", REFUSED)
def test_what_is_no_entry_is_refused_and_nothing_of_it_is_produced(
    memory: ObjectStore, open_producer: OpenProducer, shape: str
) -> None:
    producer = open_producer(memory)
    with pytest.raises(InvalidInput):
        producer.produce(REFUSED[shape]())
    producer.flush()
    assert (queue(memory), data_objects(memory)) == ((), set())


def test_what_is_refused_leaves_the_open_batch_as_it_was(store: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(store, max_batch_bytes=10)
    producer.produce(b"before")
    for bad in ([], [b"good", 5], b"x" * 11):
        with pytest.raises(InvalidInput):
            producer.produce(bad)  # type: ignore[arg-type]
    producer.produce(b"end")
    producer.flush()
    assert batches(store) == [[b"before", b"end"]]


def test_a_dict_is_sent_to_produce_json(memory: ObjectStore, open_producer: OpenProducer) -> None:
    with pytest.raises(InvalidInput, match="produce_json"):
        open_producer(memory).produce({"a": 1})  # type: ignore[arg-type]


def test_what_a_generator_raises_reaches_the_caller_and_nothing_is_produced(
    memory: ObjectStore, open_producer: OpenProducer
) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"one"
        raise LookupError("no more")

    producer = open_producer(memory)
    with pytest.raises(LookupError):
        producer.produce(breaks())  # type: ignore[arg-type]  # an iterable that is no sequence
    producer.flush()
    assert queue(memory) == ()


@pytest.mark.parametrize("given", [FULL, [b"a", FULL]], ids=["a record", "a list"])
def test_the_opendata_format_refuses_a_record_that_has_more_than_a_value(
    memory: ObjectStore, open_producer: OpenProducer, given: Record | list[bytes | Record]
) -> None:
    producer = open_producer(memory, format="opendata")
    with pytest.raises(InvalidInput, match="opendata"):
        producer.produce(given)
    producer.flush()
    assert queue(memory) == ()


@pytest.mark.parametrize("given", [b"x" * 101, [b"x" * 50, b"x" * 51], ["ä" * 51], Record(b"x" * 100, key=b"y")])
def test_more_than_max_batch_bytes_in_one_call_is_refused_and_nothing_is_produced(
    memory: ObjectStore, open_producer: OpenProducer, given: bytes | Record | list[bytes | str]
) -> None:
    producer = open_producer(memory, max_batch_bytes=100, format="arrow")
    with pytest.raises(InvalidInput, match="max_batch_bytes"):
        producer.produce(given)
    producer.flush()
    assert (queue(memory), data_objects(memory)) == ((), set())


@pytest.mark.parametrize("payload", [bytes(1000), bytes(range(250)) * 4], ids=["that packs well", "that does not"])
@pytest.mark.parametrize("form", ["arrow", "opendata"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_exactly_max_batch_bytes_pass_and_can_be_read_with_the_same_limit(
    memory: ObjectStore, open_producer: OpenProducer, compression: str, form: str, payload: bytes
) -> None:
    producer = open_producer(memory, max_batch_bytes=1000, compression=compression, format=form)
    producer.produce([payload[:400], payload[400:]])
    producer.flush()
    with Consumer(memory, ConsumerConfig(max_batch_bytes=1000, gc=False)) as consumer:
        batch = consumer.next_batch()
    assert batch is not None
    assert batch.entries == [payload[:400], payload[400:]]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_exactly_max_batch_bytes_pass_on_every_store(
    store: ObjectStore, open_producer: OpenProducer, compression: str
) -> None:
    producer = open_producer(store, max_batch_bytes=1 << 20, compression=compression)
    producer.produce(b"x" * (1 << 20))
    producer.flush()
    assert entries(store) == [b"x" * (1 << 20)]


def test_calls_that_pass_max_batch_bytes_together_go_into_two_batches(
    store: ObjectStore, open_producer: OpenProducer
) -> None:
    producer = open_producer(store, max_batch_bytes=1000)
    for given in (b"a" * 600, b"b" * 400, b"c"):
        producer.produce(given)
    producer.flush()
    assert batches(store) == [[b"a" * 600, b"b" * 400], [b"c"]]
