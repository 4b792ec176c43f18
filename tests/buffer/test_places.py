"""Paths that a buffer could not use for all its objects are refused at the start, with the field and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Producer, ProducerConfig
from penstock.buffer.manifest.contents import Manifest
from penstock.buffer.manifest.state import Limits
from penstock.buffer.manifest.upgrade import upgrade
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import InvalidInput
from penstock.records import values_to_arrow
from penstock.storage import LocalStore, MemoryStore, ObjectStore, open_store
from penstock.testing import FaultyStore

MANIFESTS = ["native"]

Make = Callable[[ObjectStore, str, str], object]
MAKERS: dict[str, Make] = {
    "producer": lambda store, prefix, path: Producer(
        store, ProducerConfig(data_path_prefix=prefix, manifest_path=path)
    ).close(),
    "consumer": lambda store, prefix, path: Consumer(
        store, ConsumerConfig(data_path_prefix=prefix, manifest_path=path)
    ).close(),
    "collector": lambda store, prefix, path: GarbageCollector(
        store, ConsumerConfig(data_path_prefix=prefix, manifest_path=path)
    ),
    "appender": lambda store, prefix, path: BlockAppender(
        store, ProducerConfig(data_path_prefix=prefix, manifest_path=path)
    ),
}


def refused_by_all(store: ObjectStore, prefix: str, path: str, field: str, why: str) -> None:
    for make in MAKERS.values():
        with pytest.raises(InvalidInput, match=why) as refused:
            make(store, prefix, path)
        assert str(refused.value).startswith(field)
    assert not list(store.list_objects())


@pytest.mark.parametrize(
    ("prefix", "path", "field", "why"),
    [
        ("m", "m", "data_path_prefix", "one name cannot be an object and also hold objects"),
        ("m/data", "m", "data_path_prefix", "one name cannot be an object and also hold objects"),
        ("m.d", "m", "data_path_prefix", "where the segments of manifest_path 'm' are"),
        ("a/m.d/x", "a/m", "data_path_prefix", "where the segments of manifest_path 'a/m' are"),
        ("data", "data/.owner/m", "manifest_path", "below '.owner'"),
        ("data", "other/.collected", "manifest_path", "has the name of"),
        ("data", "other/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", "manifest_path", "has the name of"),
        ("data", "01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", "manifest_path", "has the name of"),
        ("data", f"m.d/{'0' * 20}-01ARZ3NDEKTSV4RRFFQ69G5FAV.seg", "manifest_path", "has the name of"),
        ("data", "/".join(["m" * 200] * 5), "manifest_path", "with the name of an object it has 1058 bytes"),
        ("/".join(["p" * 200] * 5), "m", "data_path_prefix", "with the name of an object it has 1037 bytes"),
    ],
)
def test_places_in_each_others_way_are_refused_on_every_store(
    prefix: str, path: str, field: str, why: str, fresh_name: str
) -> None:
    for config in (ProducerConfig, ConsumerConfig):
        with pytest.raises(InvalidInput, match=why):
            config(data_path_prefix=prefix, manifest_path=path)
    refused_by_all(MemoryStore(fresh_name), prefix, path, field, why)


@pytest.mark.parametrize("path", ["m", "data/m", "data/m/n", "data.d/m", "m.d", "data/x.owner", "m/data"])
def test_paths_beside_each_other_are_accepted(path: str) -> None:
    assert ProducerConfig(data_path_prefix="data", manifest_path=path).manifest_path == path


@pytest.mark.parametrize(
    ("prefix", "path", "field", "why"),
    [
        ("data", "m" * 254, "manifest_path", "a segment is longer than the 255 bytes"),
        ("data", "ä" * 127, "manifest_path", "a segment is longer than the 255 bytes"),
        ("data", ".penstock/m", "manifest_path", "keeps its locks"),
        ("data/.penstock", "m", "data_path_prefix", "keeps its locks"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda store: store, lambda store: FaultyStore(store, rates={})])
def test_a_local_disk_refuses_at_the_start_what_it_could_not_keep(
    tmp_path: Path, prefix: str, path: str, field: str, why: str, wrap: Callable[[ObjectStore], ObjectStore]
) -> None:
    refused_by_all(wrap(LocalStore(tmp_path, sync=False)), prefix, path, field, why)


def test_a_path_that_the_system_cannot_open_is_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 200] * 18)
    refused_by_all(LocalStore(deep, sync=False), "data", "/".join(["m" * 200] * 4), "manifest_path", "at most 4095")
    refused_by_all(LocalStore(deep, sync=False), "/".join(["p" * 200] * 4), "m", "data_path_prefix", "at most 4095")


def test_an_object_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    for path, field in (("m.d", "manifest_path"), ("data", "data_path_prefix")):
        store.put(path, b"of another program")
        for make in MAKERS.values():
            with pytest.raises(InvalidInput, match="is an object, and cannot hold objects below it") as refused:
                make(store, "data", "m")
            assert str(refused.value).startswith(field)
        store.delete([path])
    store.put("m/other", b"")
    for make in MAKERS.values():
        with pytest.raises(InvalidInput, match=r"manifest_path 'm' cannot be used .* holds objects"):
            make(store, "data", "m")


def test_the_prefix_of_a_bucket_counts_for_its_limit() -> None:
    store = open_store("s3://bucket/" + "/".join(["p" * 100] * 9), region="us-east-1", skip_signature="true")
    with pytest.raises(InvalidInput, match=r"manifest_path .* is longer than 1024 bytes"):
        GarbageCollector(store, ConsumerConfig(manifest_path="m" * 100))
    with pytest.raises(InvalidInput, match=r"data_path_prefix .* is longer than 1024 bytes"):
        GarbageCollector(store, ConsumerConfig(data_path_prefix="d" * 100))


def test_an_upgrade_checks_where_its_segments_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    with pytest.raises(InvalidInput, match=r"manifest_path .* a segment is longer than the 255 bytes"):
        upgrade(store, "m" * 254)


def test_the_longest_path_that_is_accepted_leaves_enough_for_segments(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, sync=False)
    path = "m" * 253
    appender = BlockAppender(store, ProducerConfig(manifest_path=path))
    written = [appender.write(values_to_arrow([b"x"])) for _ in range(Limits().tail_entries + 1)]
    for one in written:
        assert appender.append([one])
    head = Manifest.read(store, path).head
    assert head is not None
    assert head.segments
