"""The names of data objects: those that a producer creates, and those that a collector recognises."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from penstock.buffer.locations import Names, is_data_name, is_data_path, is_in_ranges, joined_ranges, location_time
from penstock.errors import InvalidInput
from tests.support.processes import in_forked_child

MANIFESTS = ["native"]  # names are the same on both versions
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PREFIXES = st.sampled_from(["ingest", "a/b", "a-b.c/d"])


def is_ulid(text: str) -> bool:
    """Whether a text is a ULID, by its specification."""
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


def test_a_forked_child_and_its_parent_use_different_names_in_one_moment() -> None:
    names = Names(lambda: 1.0)
    names.location("ingest")

    def show() -> None:
        raise InvalidInput(names.location("ingest"))

    assert in_forked_child(show).removeprefix("InvalidInput: ") != names.location("ingest")


def test_names_come_from_the_randomness_that_was_given() -> None:
    first, second = (Names(lambda: 1.0, lambda count: bytes(range(count))) for _ in range(2))
    assert first.location("ingest") == second.location("ingest") == "ingest/00000000Z8000G40R40M30E209.batch"
    assert first.writer() == second.writer() == "AAECAwQFBgcICQoL"


@given(
    times=st.lists(st.integers(min_value=0, max_value=1 << 40), min_size=1),
    floor=st.integers(min_value=0, max_value=1 << 40),
)
def test_new_locations_have_the_clocks_time_or_the_first_above_the_floor(times: list[int], floor: int) -> None:
    clock = iter(times)
    names = Names(lambda: next(clock) / 1000)
    found = [location_time(names.location("ingest", floor)) for _ in times]
    assert found == [max(floor + 1, int(at / 1000 * 1000)) for at in times]  # as a float has it


def test_a_clock_that_was_wrong_for_one_call_names_what_it_was_asked_for_then_and_nothing_after() -> None:
    clock = iter([1_000.0, 1_000_000.0, 1_001.0])
    names = Names(lambda: next(clock))
    assert [location_time(names.location("ingest")) for _ in range(3)] == [1_000_000, 1_000_000_000, 1_001_000]


@given(
    now=st.integers(min_value=0, max_value=40),
    floor=st.integers(min_value=0, max_value=40),
    closed=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=5),
)
def test_new_locations_are_in_no_closed_range(now: int, floor: int, closed: list[tuple[int, int]]) -> None:
    ranges = joined_ranges((first, first + more) for first, more in closed)
    names = Names(lambda: now / 1000)
    names.keep_out_of(ranges)
    found = location_time(names.location("ingest", floor)) or 0
    free = (at for at in itertools.count(max(int(now / 1000 * 1000), floor + 1)) if not is_in_ranges(ranges, at))
    assert found == next(free)


def test_with_no_time_left_above_the_floor_no_name_is_created() -> None:
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
