"""Rows in Parquet files: split by partition, in order, in bounded memory, with what the footers say."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import open_store
from penstock.errors import StorageError
from penstock.spark.tables.column_statistics import ColumnStatistics
from penstock.spark.tables.destinations import Destination, InDirectory, InStore, InStoreFromDisk
from penstock.spark.tables.rows_by_partition import Values, split
from penstock.spark.tables.rows_in_parquet import RowsInParquet, WrittenFile
from penstock.storage import MemoryStore

KIB, MIB = 1 << 10, 1 << 20
PARTITIONS = 300
ROWS = 6000
DESTINATIONS: dict[str, Callable[[Path], Destination]] = {
    "directory": lambda path: InDirectory(f"{path}/top"),
    "store": lambda path: InStore(open_store(f"file://{path}"), "top"),
    "store from disk": lambda path: InStoreFromDisk(open_store(f"file://{path}"), "top"),
}


def opened(destination: Destination | MemoryStore, *partition_by: str, **settings: Any) -> RowsInParquet:
    """A writer whose files are in directories of their partitions, numbered as they are begun."""
    numbers = itertools.count()

    def place(values: Values) -> str:
        folders = [f"{name}={value or 'none'}" for name, value in zip(partition_by, values, strict=True)]
        return "/".join([*folders, f"{next(numbers):04d}.parquet"])

    to = InStore(destination) if isinstance(destination, MemoryStore) else destination
    return RowsInParquet(to, place, partition_by, **settings)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def rows_of(store: MemoryStore, file: WrittenFile) -> pa.Table:
    return pq.read_table(BytesIO(store.get(file.path).data))


def batches(count: int) -> list[pa.RecordBatch]:
    """Rows of which each batch has some of every partition, about 600 KiB each."""
    found = []
    for number in range(count):
        ids = range(number * ROWS, (number + 1) * ROWS)
        found.append(batch(id=list(ids), text=[f"{one:0100d}" for one in ids], p=[one % PARTITIONS for one in ids]))
    return found


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["a", "b", None, ""]), st.sampled_from([1, 2, None])), max_size=20)),
    st.integers(1, 5_000),
)
def test_every_row_is_in_the_file_of_its_values_and_in_order(batches: list[list[tuple[Any, Any]]], limit: int) -> None:
    store = MemoryStore("test-rows-in-parquet")
    writer = opened(store, "event", "number", max_held_bytes=limit, file_bytes=limit, max_open_files=2)
    numbers = itertools.count()
    expected: dict[tuple[Any, ...], list[int]] = {}
    for keys in batches:
        ids = [next(numbers) for _ in keys]
        for key, one in zip(keys, ids, strict=True):
            expected.setdefault((key[0], None if key[1] is None else str(key[1])), []).append(one)
        columns = {
            "event": pa.array([event for event, _ in keys], pa.string()),
            "number": pa.array([number for _, number in keys], pa.int64()),
            "id": pa.array(ids, pa.int64()),
        }
        writer.add(pa.RecordBatch.from_pydict(columns))
    found: dict[tuple[Any, ...], list[int]] = {}
    for file in writer.close():
        ids = rows_of(store, file).column("id").to_pylist()  # type: ignore[assignment]
        assert file.rows == len(ids)
        assert file.size == store.head(file.path).size
        found.setdefault(file.values, []).extend(ids)
    assert found == expected


def test_values_with_the_same_text_are_one_partition_and_their_rows_stay_in_order() -> None:
    def shortened(values: pa.Array[Any]) -> pa.Array[Any]:
        return pa.array([value.as_py()[:1] or None for value in values], pa.string())

    rows = batch(id=[1, 2, 3, 4], event=["ab", "", "ac", "b"])
    parts = [(values, part.column("id").to_pylist()) for values, part in split(rows, ["event"], shortened)]
    assert parts == [(("a",), [1, 3]), ((None,), [2]), (("b",), [4])]


def test_rows_of_300_partitions_become_a_file_for_each_and_all_are_there(tmp_path: Path) -> None:
    writer = opened(InDirectory(str(tmp_path)), "p")
    for one in batches(10):
        writer.add(one)
    files = writer.close()
    assert len(files) == PARTITIONS
    assert sorted(file.values for file in files) == sorted((str(p),) for p in range(PARTITIONS))
    assert sum(file.rows for file in files) == 10 * ROWS
    found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert Counter(found["id"].to_pylist()) == Counter(range(10 * ROWS))
    assert Counter(found["p"].to_pylist()) == dict.fromkeys(range(PARTITIONS), 10 * ROWS // PARTITIONS)
    assert [(tmp_path / file.path).stat().st_size for file in files] == [file.size for file in files]


def test_a_file_ends_at_its_size_and_rows_without_partitions_stay_in_order(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    writer = opened(store, file_bytes=20_000, max_held_bytes=70_000, with_statistics=True)
    for first in range(0, 20_000, 500):
        writer.add(batch(id=list(range(first, first + 500)), text=[f"{n * 7919 % 104729:09d}" for n in range(500)]))
    files = writer.close()
    assert len(files) > 2
    assert [one for file in files for one in rows_of(store, file).column("id").to_pylist()] == list(range(20_000))
    assert files[0].statistics["id"].greatest == files[0].rows - 1


def test_what_the_footers_say_is_over_all_row_groups(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    writer = opened(store, row_group_bytes=1, with_statistics=True)
    for number in range(3):
        writer.add(
            batch(
                nested=[{"a": 1, "b": [1, 2]}],
                id=[number],
                text=pa.array([None if number == 1 else f"t{number}"], pa.string()),
                day=[date(2026, 1, 1 + number)],
                money=pa.array([Decimal(f"{number}.50")], pa.decimal128(10, 2)),
                ratio=[float("nan") if number == 2 else 1.5],
                nothing=pa.array([None], pa.int64()),
            )
        )
    (file,) = writer.close()
    assert pq.ParquetFile(BytesIO(store.get(file.path).data)).num_row_groups == 3
    assert file.statistics == {
        "id": ColumnStatistics(0, 2, 0),
        "text": ColumnStatistics("t0", "t2", 1),
        "day": ColumnStatistics(date(2026, 1, 1), date(2026, 1, 3), 0),
        "money": ColumnStatistics(Decimal("0.50"), Decimal("2.50"), 0),
        "ratio": ColumnStatistics(None, None, 0),  # Parquet leaves NaN out of the bounds
        "nothing": ColumnStatistics(None, None, 3),
    }


def test_statistics_are_there_only_where_they_are_asked_for(fresh_name: str) -> None:
    writer = opened(MemoryStore(fresh_name))
    writer.add(batch(id=[1]))
    (file,) = writer.close()
    assert file.statistics == {}


@pytest.mark.parametrize("where", ["directory", "store"])
def test_memory_and_open_files_are_bounded_however_much_comes_for_however_many_partitions(
    where: str, tmp_path: Path, fresh_name: str
) -> None:
    store = MemoryStore(fresh_name)
    destination = InDirectory(str(tmp_path)) if where == "directory" else InStore(store)
    held, open_files = 2048 * KIB, 20
    given = batches(12)  # of 0.6 MiB each: three times what may be held
    writer = opened(destination, "p", max_held_bytes=held, row_group_bytes=held // 2, max_open_files=open_files)
    memory = files = 0
    before = pa.total_allocated_bytes(), len(os.listdir("/proc/self/fd"))
    for one in given:
        writer.add(one)
        memory = max(memory, pa.total_allocated_bytes() - before[0])
        files = max(files, len(os.listdir("/proc/self/fd")) - before[1])
    written = writer.close()
    assert memory < 2 * held
    assert files <= open_files + 5
    assert len(written) < PARTITIONS * 12 / 2, "what waits for more of its own is not written at once"
    read = [
        pq.read_table(tmp_path / file.path, partitioning=None) if where == "directory" else rows_of(store, file)
        for file in written
    ]
    assert Counter(pa.concat_tables(read)["id"].to_pylist()) == Counter(range(12 * ROWS))


def test_memory_stays_bounded_where_one_of_many_partitions_has_nearly_all_rows(fresh_name: str) -> None:
    class Sizes(MemoryStore):
        def put(self, path: str, data: Any) -> str:
            return super().put(path, b"")

    writer = opened(
        Sizes(fresh_name), "key", max_held_bytes=8 * MIB, file_bytes=4 * MIB, max_open_files=8, with_statistics=True
    )
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    most = 0
    for number in range(60):
        # One partition has nearly all rows, and each batch brings some to every other one.
        keys = ["large"] * 4_000 + [f"{one}" for one in range(200)]
        writer.add(batch(key=keys, text=[f"{number}-{one}" * 10 for one in range(len(keys))]))
        most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    files = writer.close()
    assert sum(file.rows for file in files) == 60 * 4_200
    assert most < 24 * MIB
    assert len(files) < 60 * 20


def test_files_in_memory_count_as_much_as_rows_that_wait(fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    writer = opened(store, max_held_bytes=256 * KIB, row_group_bytes=64 * KIB)
    for _ in range(32):
        writer.add(batch(noise=[os.urandom(1024) for _ in range(32)]))
    put_before_the_end = list(store.list_objects())
    writer.close()
    assert len(put_before_the_end) >= 3
    assert all(128 * KIB < found.size < 320 * KIB for found in put_before_the_end)


def test_a_few_rows_that_wait_do_not_keep_their_whole_batch_in_memory(tmp_path: Path) -> None:
    count, rows = 16, 8192
    writer = opened(InDirectory(str(tmp_path)), "p")
    before = pa.total_allocated_bytes()
    for number in range(count):  # of 8 MiB each: one row is of a partition of its own, and waits
        text = [f"{number * rows + one:01024d}" for one in range(rows)]
        writer.add(batch(id=list(range(rows)), text=text, p=[0] + [1] * (rows - 1)))
    assert pa.total_allocated_bytes() - before < 64 * MIB
    assert sum(file.rows for file in writer.close()) == count * rows


@pytest.mark.parametrize("count", [1, 5])
def test_a_part_does_not_keep_the_rest_of_its_batch_in_memory(count: int) -> None:
    whole = batch(event=["a"] * 10_000 + ["b"] * count, id=list(range(10_000 + count)))
    parts = dict(split(whole, ["event"]))
    assert parts[("b",)].num_rows == count
    assert parts[("b",)].get_total_buffer_size() < 1_000


@pytest.mark.parametrize("where", DESTINATIONS)
def test_a_task_that_fails_leaves_none_of_its_files(where: str, tmp_path: Path) -> None:
    writer = opened(DESTINATIONS[where](tmp_path), "p", file_bytes=4_000, row_group_bytes=1)
    writer.add(batch(id=[1], text=["x"], p=[0]))  # begun, and not finished
    writer.add(batch(id=[1], text=[os.urandom(8_000).hex()], p=[1]))
    assert list(tmp_path.rglob("*.parquet"))
    writer.abort()
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_abort_that_fails_does_not_hide_why_the_task_failed(
    fresh_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MemoryStore):
        def delete(self, paths: Any) -> Any:
            raise OSError("the bucket is gone")

    writer = opened(Failing(fresh_name), file_bytes=1)
    writer.add(batch(id=[1]))
    writer.abort()
    assert "the bucket is gone" in caplog.text


def test_a_put_that_fails_and_keeps_its_data_does_not_keep_the_rest_from_being_removed(fresh_name: str) -> None:
    kept = []

    class Failing(MemoryStore):
        def put(self, path: str, data: Any) -> str:
            super().put(path, data)
            kept.append(data)  # as the frames of the error do
            raise StorageError("the answer was lost")

    store = Failing(fresh_name)
    writer = opened(store)
    writer.add(batch(id=[1]))
    with pytest.raises(StorageError, match="answer was lost"):
        writer.close()
    writer.abort()
    assert kept
    assert list(store.list_objects()) == []


def test_rows_of_no_batch_are_no_file(fresh_name: str) -> None:
    writer = opened(MemoryStore(fresh_name), "event")
    writer.add(batch(event=pa.array([], pa.string()), id=pa.array([], pa.int64())))
    assert writer.close() == []
