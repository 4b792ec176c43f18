"""Ranges of times that a collector closes: how they are collected, cut, joined, and read from a head."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.buffer.locations import is_in_ranges, joined_ranges
from penstock.buffer.manifest.v2.collecting import MOST_RANGES, RangesToClose
from penstock.buffer.manifest.v2.head import decode_head, encode_head, unborn_head
from penstock.errors import CorruptData

MANIFESTS = ["native"]
HEAD = unborn_head()
HOUR_MS = 3_600_000
TIMES = st.integers(min_value=0, max_value=40).map(lambda number: number * HOUR_MS // 2)
RANGES = st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), max_size=4).map(joined_ranges)


@given(closed=RANGES, times=st.lists(TIMES, max_size=20), named=st.lists(TIMES, max_size=6))
def test_nothing_that_is_named_is_in_what_is_closed_anew(
    closed: tuple[tuple[int, int], ...], times: list[int], named: list[int]
) -> None:
    gathered = RangesToClose(closed)
    for at in times:
        if not is_in_ranges(closed, at):
            gathered.add(at)
    gathered.join_to_closed()
    for at in named:
        gathered.spare(at)
    assert not any(is_in_ranges(gathered.ranges, at) for at in named)
    assert all(first <= last for first, last in gathered.ranges)
    assert len(joined_ranges((*closed, *gathered.ranges))) <= MOST_RANGES


@given(closed=RANGES, times=st.lists(TIMES, max_size=20))
def test_where_nothing_is_named_every_time_is_closed(closed: tuple[tuple[int, int], ...], times: list[int]) -> None:
    gathered = RangesToClose(closed)
    for at in times:
        if not is_in_ranges(closed, at):
            gathered.add(at)
    gathered.join_to_closed()
    assert all(is_in_ranges((*closed, *gathered.ranges), at) for at in times)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=8))
def test_joined_ranges_hold_the_same_times_in_order_and_apart(pairs: list[tuple[int, int]]) -> None:
    ranges = [(first, first + more) for first, more in pairs]
    joined = joined_ranges(ranges)
    assert [at for at in range(80) if is_in_ranges(tuple(ranges), at)] == [
        at for at in range(80) if is_in_ranges(joined, at)
    ]
    assert all(one[1] + 1 < two[0] for one, two in itertools.pairwise(joined))


def test_a_head_without_closed_ranges_is_written_without_them() -> None:
    assert b"closed" not in encode_head(HEAD)
    assert decode_head(encode_head(HEAD)).closed == ()


def test_a_head_keeps_its_closed_ranges() -> None:
    head = msgspec.structs.replace(HEAD, closed=((5, 7), (9, 9)))
    assert decode_head(encode_head(head)) == head


@pytest.mark.parametrize(
    "closed", [((7, 5),), ((9, 9), (5, 7)), ((5, 7), (6, 9)), ((5, 7), (8, 9)), ((-1, 3),)], ids=str
)
def test_invalid_ranges_are_corrupt_data(closed: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(CorruptData):
        decode_head(encode_head(msgspec.structs.replace(HEAD, closed=closed)))
