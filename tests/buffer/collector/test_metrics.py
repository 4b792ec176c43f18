"""What a collector counts, under the label of its buffer."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from penstock.buffer import GarbageCollector
from penstock.errors import StorageError
from penstock.testing import Fault, FaultyStore
from tests.buffer.collector.place import Place, data_path

DELETED = "penstock_buffer_gc_files_deleted_total"
FAILED = "penstock_buffer_gc_files_failed_total"
CYCLES = "penstock_buffer_gc_duration_seconds_count"
SECONDS = "penstock_buffer_gc_duration_seconds_sum"


def measured(name: str, buffer: str) -> float:
    """The value of a metric for a buffer; 0 where it has none yet."""
    return REGISTRY.get_sample_value(name, {"buffer": buffer}) or 0.0


@pytest.fixture
def littered(place: Place) -> Place:
    """A buffer with three objects that a cycle would delete, and one that is referenced."""
    place.enqueue(data_path(0))
    place.write(*map(data_path, range(4)))
    place.ripen()
    return place


def test_what_was_deleted_is_counted(littered: Place) -> None:
    littered.collect()
    assert measured(DELETED, littered.store.url) == 3


def test_what_could_not_be_deleted_is_counted_apart(littered: Place) -> None:
    faulty = FaultyStore(littered.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="delete", path=data_path(2))
    littered.collector(faulty).collect_once()
    assert (measured(DELETED, faulty.url), measured(FAILED, faulty.url)) == (2, 1)


def test_what_is_kept_is_not_counted(littered: Place) -> None:
    littered.collect()
    littered.collect()
    assert (measured(DELETED, littered.store.url), measured(FAILED, littered.store.url)) == (3, 0)


def test_every_cycle_is_timed(littered: Place) -> None:
    before = measured(CYCLES, littered.store.url)
    littered.collector().collect_once()
    littered.collector().collect_once()
    assert measured(CYCLES, littered.store.url) == before + 2


def test_the_time_of_a_cycle_is_that_of_its_store(memory_place: Place) -> None:
    slow = FaultyStore(memory_place.store, rates={})
    slow.inject(Fault.DELAY, operation="list_objects")
    GarbageCollector(slow).collect_once()
    assert 0 < measured(SECONDS, slow.url) < 60


def test_a_cycle_that_failed_has_counted_no_file(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0))
    memory_place.write(data_path(1))
    memory_place.ripen()
    faulty = FaultyStore(memory_place.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    with pytest.raises(StorageError):
        memory_place.collector(faulty).collect_once()
    assert (measured(DELETED, faulty.url), measured(FAILED, faulty.url)) == (0, 0)


def test_a_second_buffer_on_the_store_has_a_label_of_its_own(memory_place: Place) -> None:
    memory_place.enqueue(data_path(0, "other"), manifest="other/manifest")
    memory_place.write(data_path(1, "other"), data_path(2, "other"))
    memory_place.collect(data_path_prefix="other", manifest_path="other/manifest")
    url = memory_place.store.url
    assert (measured(DELETED, url), measured(DELETED, f"{url}/other/manifest")) == (0, 2)
