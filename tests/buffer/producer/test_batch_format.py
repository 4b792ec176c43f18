"""Which batch format a producer writes where none was asked for: the one that every reader of the buffer can read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from penstock import ObjectStore, Record
from penstock.buffer import Consumer, ConsumerConfig, Manifest, ManifestFormat, Producer, ProducerConfig
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.upgrade import upgrade
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import InvalidInput, StorageError
from penstock.records import records_to_arrow
from tests.buffer.producer.conftest import OpenProducer
from tests.support import manifests
from tests.support.buffer_contents import data_objects, entries
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Gate

ENDINGS = {"opendata": b"\x01\x00", "arrow": b"PSTB"}
OF_VERSION = {"native": "arrow", "opendata": "opendata"}
KEYED = Record(b"v", key=b"k")
MORE: list[Record | list[Record] | pa.RecordBatch] = [
    KEYED,
    Record(b"v", headers=[("h", b"1")]),
    Record(b"v", timestamp_ms=5),
    [Record(b"plain"), KEYED],
    records_to_arrow([KEYED]),
]


def formats(store: ObjectStore) -> list[str]:
    """The format of each batch in the queue, by the last bytes of its object."""
    found = [store.get(entry.location).data for entry in Manifest.read(store).entries]
    return [next(name for name, ending in ENDINGS.items() if data.endswith(ending)) for data in found]


def test_a_new_buffer_gets_the_format_of_its_manifest(
    store: ObjectStore, open_producer: OpenProducer, manifest: str
) -> None:
    open_producer(store, flush_size_bytes=1).produce(b"x").result(PATIENCE)
    assert formats(store) == [OF_VERSION[manifest]]


@pytest.mark.parametrize("asked", list(ManifestFormat))
def test_an_existing_buffer_gets_the_format_of_the_manifest_it_has_whatever_a_new_one_would_get(
    store: ObjectStore, open_producer: OpenProducer, manifest: str, asked: str
) -> None:
    Consumer(store, ConsumerConfig(gc=False)).close()  # a manifest that is there, as OpenData's crate leaves one
    open_producer(store, flush_size_bytes=1, manifest_format=asked).produce(b"x").result(PATIENCE)
    assert formats(store) == [OF_VERSION[manifest]]


@pytest.mark.parametrize("asked", ENDINGS)
def test_the_format_that_was_asked_for_is_written_on_either_version(
    memory: ObjectStore, open_producer: OpenProducer, asked: str
) -> None:
    open_producer(memory, flush_size_bytes=1, format=asked).produce(b"x").result(PATIENCE)
    assert formats(memory) == [asked]


def test_a_block_gets_the_format_of_the_manifest_too(memory: ObjectStore, manifest: str) -> None:
    appender = BlockAppender(memory)
    appender.append([appender.write(records_to_arrow([b"x"]))])
    assert formats(memory) == [OF_VERSION[manifest]]


@pytest.mark.parametrize("more", MORE, ids=["a key", "headers", "a timestamp", "a list", "columns"])
def test_records_with_more_than_a_value_are_refused_on_version_1_before_they_are_accepted(
    memory: ObjectStore, open_producer: OpenProducer, manifest: str, more: Record | list[Record] | pa.RecordBatch
) -> None:
    Consumer(memory, ConsumerConfig(gc=False)).close()
    producer = open_producer(memory, manifest_format="native")
    if manifest == "native":
        producer.produce(more)
        return
    with pytest.raises(InvalidInput, match=r"keeps values only, and a record has (key|headers|timestamp);.* version 1"):
        producer.produce(more)
    producer.flush()
    assert data_objects(memory) == set()


def test_a_block_with_keys_is_refused_on_version_1(memory: ObjectStore, manifest: str) -> None:
    appender = BlockAppender(memory)
    if manifest == "native":
        appender.write(records_to_arrow([KEYED]))
        return
    with pytest.raises(InvalidInput, match="keeps values only"):
        appender.write(records_to_arrow([KEYED]))
    assert data_objects(memory) == set()


def by_a_store_that_hangs(store: HookedStore, gate: Gate) -> None:
    store.before("read owner", gate)


def by_a_store_that_fails(store: HookedStore, gate: Gate) -> None:
    def fail() -> None:
        raise StorageError("no answer")

    store.before("read owner", fail, times=1)
    store.before("read owner", gate)


@pytest.mark.parametrize("unseen", [by_a_store_that_hangs, by_a_store_that_fails])
def test_records_with_keys_that_were_accepted_before_version_1_was_seen_fail_their_handles_and_no_others(
    memory: ObjectStore,
    open_producer: OpenProducer,
    gate: Gate,
    unseen: Callable[[HookedStore, Gate], None],
) -> None:
    with manifests.new_buffers_are("opendata"):
        Consumer(memory, ConsumerConfig(gc=False)).close()
    store = HookedStore(memory)
    unseen(store, gate)
    with manifests.new_buffers_are("native"):
        producer = open_producer(store)
    plain = [producer.produce(b"0"), producer.produce(Record(b"1"))]
    keyed = [producer.produce(KEYED), producer.produce([b"beside a key", KEYED])]
    plain += [producer.produce(b"2"), producer.produce([b"3", Record(b"4")]), producer.produce(b"5")]
    keyed += [producer.produce(records_to_arrow([KEYED]))]
    gate.open()
    with pytest.raises(InvalidInput, match="keeps values only"):
        producer.flush()
    for handle in keyed:
        with pytest.raises(InvalidInput, match="keeps values only"):
            handle.result(PATIENCE)
    for handle in plain:
        handle.result(PATIENCE)
    assert entries(memory) == [b"%d" % number for number in range(6)]


def test_a_producer_that_runs_through_an_upgrade_writes_arrow_once_it_has_seen_it(memory: ObjectStore) -> None:
    with manifests.new_buffers_are("opendata"):
        producer = Producer(memory, ProducerConfig(flush_size_bytes=1))
        producer.produce(b"0").result(PATIENCE)
    upgrade(memory)
    with producer:
        producer.produce(b"1").result(PATIENCE)  # it reads version 2 when it enqueues this
        producer.produce(KEYED).result(PATIENCE)
    assert formats(memory) == ["opendata", "opendata", "arrow"]


# Paths that OpenData's crate would write in another way.

ENCODED = {"~": "%7E", "%": "%25", "#": "%23", "*": "%2A", "?": "%3F", "[": "%5B", "]": "%5D", "{": "%7B", "}": "%7D"}
ENCODED |= {"^": "%5E", "`": "%60", '"': "%22", "<": "%3C", ">": "%3E", "|": "%7C", "ä": "%C3%A4", "🚰": "%F0%9F%9A%B0"}
PLACES: list[tuple[str, Callable[[str], dict[str, str]]]] = [
    ("data_path_prefix", lambda character: {"data_path_prefix": f"in{character}gest"}),
    ("manifest_path", lambda character: {"manifest_path": f"ingest/{character}manifest"}),
]


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig])
@pytest.mark.parametrize(("field", "place"), PLACES, ids=["prefix", "manifest"])
@pytest.mark.parametrize("character", ENCODED)
def test_a_path_that_opendata_would_write_in_another_way_is_refused_for_opendata(
    kind: type[ProducerConfig] | type[ConsumerConfig],
    field: str,
    place: Callable[[str], dict[str, str]],
    character: str,
) -> None:
    settings = place(character)
    with pytest.raises(InvalidInput) as refused:
        kind(manifest_format="opendata", **settings)  # type: ignore[arg-type]
    for part in (field, repr(settings[field]), f"has {character!r}", repr(ENCODED[character])):
        assert part in str(refused.value)
    kind(manifest_format="native", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["a-b_c.d/e", "A B", "a+b,c;d=e@f!g$h&i'j(k)l", "a:b"])
def test_other_paths_are_fine_for_opendata(path: str) -> None:
    ProducerConfig(manifest_format="opendata", data_path_prefix=path, manifest_path=f"{path}/m")


@pytest.mark.parametrize(("field", "place"), PLACES, ids=["prefix", "manifest"])
def test_such_a_path_is_refused_on_a_manifest_that_is_version_1(
    memory: ObjectStore, field: str, place: Callable[[str], dict[str, str]]
) -> None:
    settings = place("~") | {"manifest_format": "native"}
    path = settings.get("manifest_path", "ingest/manifest")
    with manifests.new_buffers_are("opendata"):
        Consumer(memory, ConsumerConfig(gc=False)).close()
    memory.put(path, memory.get("ingest/manifest").data)
    before = memory.get(path).data

    users: list[Callable[[], object]] = [
        lambda: Producer(memory, ProducerConfig(**settings)),  # type: ignore[arg-type]
        lambda: Consumer(memory, ConsumerConfig(**settings)),  # type: ignore[arg-type]
        lambda: BlockAppender(memory, ProducerConfig(**settings)).write(records_to_arrow([b"x"])),  # type: ignore[arg-type]
    ]
    for use in users:
        with pytest.raises(InvalidInput, match=rf"{field} .* has '~'.*penstock manifest upgrade"):
            use()
    assert memory.get(path).data == before
    assert data_objects(memory) == set()

    upgrade(memory, path)
    with Producer(memory, ProducerConfig(**settings)) as producer:  # type: ignore[arg-type]
        producer.produce(b"x")


def test_threads_that_find_version_1_at_the_same_time_agree_that_it_is_version_1(memory: ObjectStore) -> None:
    with manifests.new_buffers_are("opendata"):
        Consumer(memory, ConsumerConfig(gc=False)).close()
    store = HookedStore(memory)
    meeting = threading.Barrier(2, timeout=PATIENCE)
    store.after("read manifest", meeting.wait, times=2)  # both have read it before either knows
    with manifests.new_buffers_are("native"):
        queue = BufferQueue(store, "ingest/manifest", "producer")
    with ThreadPoolExecutor(2) as threads:
        views = [found.result() for found in [threads.submit(queue.look) for _ in range(2)]]
    assert [view.format_version for view in views] == [1, 1]
    assert queue.batch_format == "opendata"
    assert store.count("read manifest") == 2  # each decodes what is there
