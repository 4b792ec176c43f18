"""What a collector counts, under the label of its buffer."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from penstock.buffer import GarbageCollector
from penstock.errors import StorageError
from penstock.testing import Fault, FaultyStore
from tests.support.dated_buffer import DatedBuffer, data_path

DELETED = "penstock_buffer_gc_files_deleted_total"
FAILED = "penstock_buffer_gc_files_failed_total"
CYCLES = "penstock_buffer_gc_duration_seconds_count"
SECONDS = "penstock_buffer_gc_duration_seconds_sum"


def measured(name: str, buffer: str) -> float:
    """The value of a metric for a buffer; 0 where it has none yet."""
    return REGISTRY.get_sample_value(name, {"buffer": buffer}) or 0.0


def test_what_was_deleted_is_counted(with_orphans: DatedBuffer) -> None:
    with_orphans.collect()
    assert measured(DELETED, with_orphans.store.url) == 3


def test_what_could_not_be_deleted_is_counted_apart(with_orphans: DatedBuffer) -> None:
    faulty = FaultyStore(with_orphans.store, rates={})
    faulty.inject(Fault.ERROR_BEFORE, operation="delete", path=data_path(2))
    with_orphans.collector(faulty).collect_once()
    assert (measured(DELETED, faulty.url), measured(FAILED, faulty.url)) == (2, 1)


def test_what_is_kept_is_not_counted(with_orphans: DatedBuffer) -> None:
    with_orphans.collect()
    with_orphans.collect()
    assert (measured(DELETED, with_orphans.store.url), measured(FAILED, with_orphans.store.url)) == (3, 0)


def test_every_cycle_is_timed(with_orphans: DatedBuffer) -> None:
    before = measured(CYCLES, with_orphans.store.url)
    with_orphans.collector().collect_once()
    with_orphans.collector().collect_once()
    assert measured(CYCLES, with_orphans.store.url) == before + 2


def test_the_time_of_a_cycle_is_that_of_its_store(dated_memory: DatedBuffer) -> None:
    slow = FaultyStore(dated_memory.store, rates={})
    slow.inject(Fault.DELAY, operation="list_objects")
    GarbageCollector(slow).collect_once()
    assert 0 < measured(SECONDS, slow.url) < 60


def test_a_cycle_that_failed_has_counted_no_file(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0))
    dated_memory.write(data_path(1))
    dated_memory.set_floor()
    faulty = FaultyStore(dated_memory.store, rates={})
    faulty.inject(Fault.READ_ERROR, operation="list_objects")
    with pytest.raises(StorageError):
        dated_memory.collector(faulty).collect_once()
    assert (measured(DELETED, faulty.url), measured(FAILED, faulty.url)) == (0, 0)


def test_a_second_buffer_on_the_store_has_a_label_of_its_own(dated_memory: DatedBuffer) -> None:
    dated_memory.enqueue(data_path(0, "other"), manifest="other/manifest")
    dated_memory.write(data_path(1, "other"), data_path(2, "other"))
    dated_memory.collect(data_path_prefix="other", manifest_path="other/manifest")
    url = dated_memory.store.url
    assert (measured(DELETED, url), measured(DELETED, f"{url}/other/manifest")) == (0, 2)
