"""Every call of a store is counted by how it ended, and timed."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client import REGISTRY

from penstock import ObjectStore, open_store
from penstock.errors import InvalidInput, NotFound, StorageError


@pytest.fixture
def fresh() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4()}")


def sample(name: str, store: ObjectStore, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"penstock_storage_{name}", {"store": store.url, **labels})


def test_calls_are_counted_by_how_they_ended(fresh: ObjectStore) -> None:
    fresh.put("a", b"x")
    fresh.put("a", b"y")
    with pytest.raises(NotFound):
        fresh.get("gone")
    with pytest.raises(InvalidInput):
        fresh.get("../x")
    assert sample("operations_total", fresh, operation="put", outcome="ok") == 2
    assert sample("operations_total", fresh, operation="get", outcome="NotFound") == 1
    assert sample("operations_total", fresh, operation="get", outcome="InvalidInput") == 1
    assert sample("operations_total", fresh, operation="get", outcome="ok") is None


def test_calls_are_timed_also_those_that_fail(fresh: ObjectStore) -> None:
    with pytest.raises(NotFound):
        fresh.head("gone")
    assert sample("operation_seconds_count", fresh, operation="head") == 1


def test_bytes_are_counted_both_ways(fresh: ObjectStore) -> None:
    fresh.put_if_absent("a", b"12345")
    fresh.get("a")
    fresh.get("a")
    assert sample("bytes_written_total", fresh) == 5
    assert sample("bytes_read_total", fresh) == 10


def test_a_listing_counts_when_it_has_been_read(fresh: ObjectStore) -> None:
    fresh.put("a", b"")
    listing = fresh.list_objects()
    assert sample("operations_total", fresh, operation="list_objects", outcome="ok") is None
    assert len(list(listing)) == 1
    assert sample("operations_total", fresh, operation="list_objects", outcome="ok") == 1
    assert sample("operation_seconds_count", fresh, operation="list_objects") == 1


def test_a_listing_and_a_delete_that_fail_do_not_count_as_ok() -> None:
    name = uuid.uuid4()
    store = open_store(
        f"s3://{name}", endpoint="http://127.0.0.1:1", allow_http=True, skip_signature=True, max_retries=0
    )
    with pytest.raises(StorageError):
        list(store.list_objects())
    assert not store.delete(["a"])[0].ok
    assert sample("operations_total", store, operation="list_objects", outcome="StorageError") == 1
    assert sample("operations_total", store, operation="delete", outcome="StorageError") == 1


def test_two_stores_do_not_share_their_numbers(fresh: ObjectStore) -> None:
    other = open_store(f"memory://{uuid.uuid4()}")
    fresh.put("a", b"x")
    assert sample("operations_total", other, operation="put", outcome="ok") is None
