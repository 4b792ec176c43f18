"""A reader that knows how large an object can be does not read a larger one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import CorruptData, NotFound
from penstock.storage import LocalStore, ObjectStore, get_at_most
from penstock.testing import Fault, FaultyStore
from tests.support.minimal_stores import ThinStore


@pytest.mark.parametrize("kind", ["memory", "disk", "s3", "azure"], indirect=True)
def test_an_object_up_to_the_cap_is_read_and_a_larger_one_is_refused(store: ObjectStore) -> None:
    store.put("object", b"12345")
    assert get_at_most(store, "object", 5) == store.get("object")
    with pytest.raises(CorruptData, match=r"'object' in .* has 5 bytes, and .* at most 4"):
        get_at_most(store, "object", 4)
    with pytest.raises(NotFound):
        get_at_most(store, "other", 4)


def test_a_file_of_a_tebibyte_is_refused_without_reading_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("object", b"")
    os.truncate(tmp_path / "object", 1 << 40)
    with pytest.raises(CorruptData, match=f"{1 << 40} bytes"):
        store.get("object", max_bytes=1_000)


def test_a_faulty_store_hands_the_cap_on(tmp_path: Path) -> None:
    store = FaultyStore(tmp_path, rates={})
    store.put("object", b"12345")
    with pytest.raises(CorruptData):
        get_at_most(store, "object", 4)
    store.inject(Fault.READ_ERROR)
    with pytest.raises(Exception, match="injected"):
        get_at_most(store, "object", 5)


def test_a_store_of_others_without_the_keyword_is_capped_after_the_read(tmp_path: Path) -> None:
    store = ThinStore(LocalStore(tmp_path))
    store.put("object", b"12345")
    assert get_at_most(store, "object", 5).data == b"12345"
    with pytest.raises(CorruptData, match="5 bytes"):
        get_at_most(store, "object", 4)
