"""The names of data objects: what a producer makes up, and what a collector takes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from penstock.buffer.locations import Names, check_owner, is_data_name, is_data_path, location_time
from penstock.errors import InvalidInput
from penstock.storage import MemoryStore
from tests.buffer.collector.thin_stores import RecordingStore

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PREFIXES = st.sampled_from(["ingest", "a/b", "a-b.c/d"])


def is_ulid(text: str) -> bool:
    """Whether a text is a ULID, by the words of its specification."""
    return len(text) == 26 and set(text) <= set(ALPHABET) and text[0] <= "7"


@given(now=st.floats(min_value=-1e18, max_value=1e18), prefix=PREFIXES)
def test_a_new_location_is_a_data_path_whatever_the_clock_says(now: float, prefix: str) -> None:
    assert is_data_path(Names(lambda: now).location(prefix), prefix)


@given(now=st.integers(min_value=0, max_value=(1 << 48) - 1).map(lambda ms: ms / 1000))
def test_a_new_location_shows_its_time(now: float) -> None:
    name = Names(lambda: now).location("ingest").removeprefix("ingest/").removesuffix(".batch")
    assert ULID.from_str(name).milliseconds == max(int(now * 1000), 1)  # above the floor, which is 0 at least


def test_new_locations_of_one_moment_differ() -> None:
    names = Names(lambda: 1.0)
    assert len({names.location("ingest") for _ in range(1000)}) == 1000


@given(
    times=st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=1),
    floor=st.integers(min_value=0, max_value=1 << 40),
)
def test_new_locations_are_above_the_floor_and_never_go_back_whatever_the_clock_does(
    times: list[int], floor: int
) -> None:
    clock = iter(times)
    names = Names(lambda: next(clock) / 1000)
    found = [location_time(names.location("ingest", floor)) or 0 for _ in times]
    assert all(at > floor for at in found)
    assert found == sorted(found)
    assert found[-1] == max(floor + 1, *(int(at / 1000 * 1000) for at in times))  # as a float has it


def test_where_no_time_is_left_above_the_floor_no_name_is_made_up() -> None:
    with pytest.raises(InvalidInput, match="no ULID has a time beyond the floor"):
        Names(lambda: 1.0).location("ingest", (1 << 48) - 1)


@given(st.text(alphabet=ALPHABET, min_size=25, max_size=27) | st.text(max_size=30))
def test_a_data_name_is_a_ulid_with_the_ending(text: str) -> None:
    assert is_data_name(f"{text}.batch") == is_ulid(text)


@pytest.mark.parametrize("ending", ["", ".", ".batc", "batch", ".batches", ".Batch", ".batch\n", ".batch/"])
def test_a_ulid_with_another_ending_is_no_data_name(ending: str) -> None:
    assert not is_data_name(f"{ULID()}{ending}")


@pytest.mark.parametrize("character", ALPHABET)
def test_every_character_of_a_ulid_may_be_in_a_data_name(character: str) -> None:
    assert is_data_name(f"0{character * 25}.batch")


@pytest.mark.parametrize("first", ALPHABET)
def test_a_ulid_begins_with_7_at_most(first: str) -> None:
    assert is_data_name(f"{first}{'0' * 25}.batch") == (first in "01234567")


@pytest.mark.parametrize("prefix", ["", "in", "ingest/deeper", "other", "ingest/"])
def test_a_data_path_lies_directly_below_its_prefix(prefix: str) -> None:
    path = f"ingest/{ULID()}.batch"
    assert is_data_path(path, "ingest")
    assert not is_data_path(path, prefix)


def test_looking_at_the_owner_of_a_free_prefix_says_that_it_is_not_ones_own(fresh_name: str) -> None:
    assert not check_owner(MemoryStore(fresh_name), "ingest", "m", claim=False)


def test_looking_at_the_owner_writes_nothing(fresh_name: str) -> None:
    watched = RecordingStore(MemoryStore(fresh_name))
    check_owner(watched, "ingest", "m", claim=False)
    assert watched.calls == [("get", "ingest/.owner")]


def test_claiming_a_free_prefix_makes_it_ones_own(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    assert check_owner(store, "ingest", "m", claim=True)
    assert check_owner(store, "ingest", "m", claim=False)


def test_claiming_ones_own_prefix_again_writes_nothing(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    check_owner(store, "ingest", "m", claim=True)
    watched = RecordingStore(store)
    check_owner(watched, "ingest", "m", claim=True)
    assert watched.calls == [("get", "ingest/.owner")]


@pytest.mark.parametrize("claim", [False, True])
@pytest.mark.parametrize("other", ["M", "m2", "", "m/m"])
def test_a_prefix_of_another_manifest_is_refused(fresh_name: str, other: str, claim: bool) -> None:
    store = MemoryStore(fresh_name)
    store.put("ingest/.owner", other.encode())
    with pytest.raises(InvalidInput, match="give each buffer a data_path_prefix of its own"):
        check_owner(store, "ingest", "m", claim=claim)
