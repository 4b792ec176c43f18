"""Which of many ranges has an offset."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metalog.catalog.offset_ranges import OffsetRange, OffsetRanges

some = st.builds(OffsetRange, st.integers(0, 60), st.integers(-1, 70), st.integers(0, 3))


@settings(max_examples=200, deadline=None)
@given(st.lists(some, unique=True, max_size=80), st.integers(2, 6))
def test_ranges_in_blocks_answer_as_a_list_does(ranges: list[OffsetRange], block: int) -> None:
    kept = OffsetRanges(max_block=block)
    for one in ranges:
        kept.add(one)
    for removed in ranges[::3]:
        kept.remove(removed)
    remaining = sorted(set(ranges) - set(ranges[::3]))
    assert list(kept) == remaining
    assert kept.furthest() == max((one.end for one in remaining), default=None)
    for offset in range(-2, 72):
        holding = [one for one in remaining if one.start <= offset <= one.end]
        assert kept.find(offset) == (max(holding).segment if holding else None)
