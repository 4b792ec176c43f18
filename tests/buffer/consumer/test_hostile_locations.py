"""Locations that anyone with access to the bucket could write: nothing outside the store is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buffer import encode_batch, peek
from penstock.core.printing import printable
from penstock.errors import CorruptData, StorageError
from penstock.storage import ObjectStore, open_store
from tests.buffer.consumer.edited_manifests import with_locations
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import MANIFEST, Cursors, consume, cursors, fill, read

OUTSIDE = [
    "../x",
    "../../etc/passwd",
    "ingest/../../x",
    "/etc/passwd",
    "..",
    ".",
    "ingest//x",
    "ingest/./x",
    "ingest/",
    "..\\x",
    "ingest/\x00x",
    "ingest/\nx",
    "x" * 1025,
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_a_location_that_is_not_a_path_is_corrupt_and_named(memory: ObjectStore, location: str) -> None:
    memory.put(MANIFEST, with_locations(location))
    with pytest.raises(CorruptData) as refused:
        consume(memory).next_batch()
    assert location in refused.value.args[0]
    assert printable(location, 10 * len(location) + 1) in str(refused.value)
    assert str(refused.value).isprintable()
    assert "sequence 0" in str(refused.value)


@pytest.mark.parametrize("location", ["../x", "/etc/passwd", "ingest/../../x"])
def test_nothing_is_read_for_a_location_that_is_not_a_path(store: ObjectStore, location: str) -> None:
    store.put(MANIFEST, with_locations(location))
    intercepted = InterceptedStore(store)
    consumer = consume(intercepted)
    (descriptor,) = consumer.next_descriptors(1)
    intercepted.calls.clear()
    uses: list[Callable[[], object]] = [
        lambda: consume(store).fetch_handle().fetch(descriptor),
        lambda: consumer.fetch_handle().fetch(descriptor),
        lambda: consumer.fetch_descriptor(descriptor),
    ]
    for use in uses:
        with pytest.raises(CorruptData):
            use()
    assert intercepted.calls == []


def test_a_file_beside_the_store_is_not_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    (tmp_path / "x").write_bytes(encode_batch([b"secret"]))
    for location in ("../x", str(tmp_path / "x"), f"ingest/../../{tmp_path.name}/x"):
        store.put(MANIFEST, with_locations(location))
        with pytest.raises(CorruptData):
            consume(store).next_batch()
        with pytest.raises(CorruptData):
            peek(store)


def test_a_link_that_leads_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.put(MANIFEST, with_locations("ingest/link"))
    (tmp_path / "x").write_bytes(encode_batch([b"secret"]))
    (tmp_path / "store" / "ingest" / "link").symlink_to(tmp_path / "x")
    with pytest.raises(StorageError, match="ingest/link"):
        consume(store).next_batch()


def test_a_location_that_is_not_a_path_is_reported_each_time(memory: ObjectStore) -> None:
    memory.put(MANIFEST, with_locations("../x"))
    consumer = consume(memory)
    for _ in range(2):
        with pytest.raises(CorruptData):
            consumer.next_batch()
        assert cursors(consumer) == Cursors(None, None, None)


def test_a_location_that_is_not_a_path_can_be_skipped(memory: ObjectStore) -> None:
    memory.put(MANIFEST, with_locations("../x"))
    fill(memory, [b"a"])
    consumer = consume(memory)
    with pytest.raises(CorruptData):
        consumer.next_batch()
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    assert read(consumer).entries == [b"a"]


def test_a_location_that_is_the_manifest_itself_is_corrupt(memory: ObjectStore) -> None:
    memory.put(MANIFEST, with_locations(MANIFEST))
    with pytest.raises(CorruptData, match=f"sequence 0 .*{MANIFEST}"):
        consume(memory).next_batch()
