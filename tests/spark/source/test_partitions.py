"""How a block is cut into input partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import BatchDescriptor
from penstock.spark.source.partitions import BatchRun, Piece, plan_partitions

ANY_SPARK = True

MIB = 1 << 20


def batches(*sizes: int) -> list[BatchDescriptor]:
    return [BatchDescriptor(at, f"ingest/{at}", size=size) for at, size in enumerate(sizes)]


def plan(sizes: list[int], target: int = 64 * MIB, cores: int = 2) -> list[list[Piece]]:
    return [list(run.pieces) for run in plan_partitions(batches(*sizes), target, cores) if isinstance(run, BatchRun)]


@given(
    st.lists(st.integers(0, 300 * MIB), min_size=1, max_size=60),
    st.integers(1, 128 * MIB),
    st.integers(1, 16),
)
def test_every_row_is_in_one_partition_and_in_order(sizes: list[int], target: int, cores: int) -> None:
    if sum(sizes) // target > 5000:
        target = sum(sizes) // 5000 + 1
    pieces = [piece for run in plan(sizes, target, cores) for piece in run]
    rows = [(piece.batch.sequence, row) for piece in pieces for row in range(*piece.rows(7))]
    assert rows == [(at, row) for at in range(len(sizes)) for row in range(7)]


def test_a_partition_has_about_the_size_it_should_have() -> None:
    runs = plan([MIB] * 1000, target=50 * MIB)
    assert 16 <= len(runs) <= 20
    assert max(len(run) for run in runs) <= 63


def test_there_are_enough_of_them_for_all_cores() -> None:
    assert len(plan([10 * MIB] * 8, cores=8)) == 8
    assert len(plan([40 * MIB], cores=4)) == 4
    assert len(plan([99 * MIB], cores=2)) == 2


def test_a_small_block_is_not_cut_up() -> None:
    assert len(plan([1000] * 50, cores=16)) == 1


def test_a_large_batch_is_cut_into_ranges_of_rows() -> None:
    (first, *_, last) = plan([400 * MIB], target=100 * MIB)
    assert [piece.rows(1000) for piece in (*first, *last)] == [(0, 250), (750, 1000)]


def test_batches_whose_size_nobody_knows_are_read_all_the_same() -> None:
    runs = plan_partitions([BatchDescriptor(0, "gone"), BatchDescriptor(1, "gone too", size=0)], 64 * MIB, 2)
    assert len(runs) == 1
