"""`compact`, `vacuum` and `info` of Parquet tables: rows stay, each once, and so do positions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pytest

from penstock import open_store
from penstock.errors import InvalidInput, OutcomeUnknown, StorageError
from penstock.testing import Fault, FaultyStore
from tests.support.dying_store import Dying, Killed, Writes
from tests.support.plain_tables import QUERY, SCHEMA, ids, put_block, put_numbers, staged

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType

from penstock.spark.tables.contract import BlockId, Compacted, Position
from penstock.spark.tables.parquet.exchange import DirectoryLock
from penstock.spark.tables.parquet.objects import ObjectBlocks
from penstock.spark.tables.parquet.table import ParquetTable, open_table

OLD = 10 * 86_400.0


class Place:
    """Somewhere for a table."""

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, *partition_by: str) -> ParquetTable:
        if self.url.startswith("memory:"):
            return ParquetTable(ObjectBlocks(open_store(self.url)), partition_by)
        return open_table(None, self.url, partition_by=partition_by)

    def data_files(self) -> list[str]:
        """The Parquet files, of which plain readers know."""
        if self.url.startswith("memory:"):
            return sorted(one.path for one in open_store(self.url).list_objects() if one.path.endswith(".parquet"))
        return sorted(str(path.relative_to(self.url)) for path in Path(self.url).rglob("*.parquet"))


@pytest.fixture(params=["disk", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path, fresh_name: str) -> Place:
    return Place(str(tmp_path / "lake" / "table") if request.param == "disk" else f"memory://{fresh_name}")


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "lake" / "table"))


def plain_ids(url: str) -> list[Any]:
    """What a reader sees that knows nothing of Penstock."""
    rows: list[Any] = pyarrow.dataset.dataset(url, format="parquet", partitioning="hive").to_table()["id"].to_pylist()
    return sorted(rows)


# What compaction does


def test_small_files_become_one_and_every_row_stays_once(place: Place) -> None:
    table = place.open()
    put_numbers(table, 0, 12)
    done = table.compact()
    assert (done.files_before, done.files_after) == (12, 1)
    assert 0 < done.bytes_after < done.bytes_before
    assert ids(place.open()) == list(range(12))
    assert place.open().info().files == 1


def test_a_table_without_small_files_is_left_alone(place: Place) -> None:
    table = place.open()
    put_numbers(table, 0, 1)
    before = place.data_files()
    assert table.compact() == Compacted()
    assert place.data_files() == before


def test_files_that_are_large_enough_are_not_written_again(place: Place) -> None:
    table = place.open()
    put_block(table, [{"id": n, "event": os.urandom(32).hex()} for n in range(5_000)], 0)
    large = place.data_files()[0]
    size = table.info().bytes
    put_numbers(table, 5_000, 5_004)
    done = table.compact(target_bytes=size)
    assert (done.files_before, done.files_after) == (4, 1)
    assert ids(table) == list(range(5_004))
    assert sum(path.endswith(large.rpartition("/")[2]) for path in place.data_files()) == 1


def test_partitions_stay_apart(place: Place) -> None:
    table = place.open("event")
    put_numbers(table, 0, 8)
    put_block(table, [{"id": 8, "event": None}], 8)
    assert table.compact().files_after == 2
    rows = sorted((row["id"], row["event"]) for batch in place.open("event").rows() for row in batch.to_pylist())
    assert rows == [*((n, "ab"[n % 2]) for n in range(8)), (8, None)]
    assert place.open("event").info().partition_by == ("event",)


def test_columns_that_came_later_are_null_in_earlier_rows(place: Place) -> None:
    table = place.open()
    put_numbers(table, 0, 2)
    wider = SCHEMA.__class__(list(SCHEMA.fields)).add("place", StringType())
    put_block(table, [{"id": 2, "event": "a", "place": "here"}], 2, schema=wider)
    table.compact()
    rows = sorted((row["id"], row["place"]) for batch in table.rows() for row in batch.to_pylist())
    assert rows == [(0, None), (1, None), (2, "here")]
    assert [name for name, _ in table.info().columns] == ["id", "event", "place"]


def test_positions_stay_and_the_next_block_gets_the_next_slot(place: Place) -> None:
    table = place.open()
    put_numbers(table, 0, 3)
    put_numbers(table, 0, 5, query="other.group")
    before = table.info().positions
    table.compact()
    fresh = place.open()
    assert fresh.info().positions == before
    assert fresh.position(QUERY) == Position(3, 2, "ingest/2.arrow", 1)
    assert fresh.position("other.group") == Position(5, 4, "ingest/4.arrow", 1)
    assert fresh.has(BlockId(QUERY, 2, 3))
    assert not fresh.has(BlockId(QUERY, 3, 4))
    put_numbers(fresh, 3, 5)  # by a driver that came after
    put_numbers(table, 5, 6, query="other.group")  # and by one that was there before
    assert ids(fresh) == sorted([*range(5), *range(6)])
    assert place.open().position(QUERY) == Position(5, 4, "ingest/4.arrow", 1)


def test_compaction_again_and_again_keeps_every_row(place: Place) -> None:
    table = place.open("event")
    for start in range(0, 30, 6):
        put_numbers(table, start, start + 6)
        table.compact()
        table.vacuum(0)
    assert ids(place.open("event")) == list(range(30))
    assert len(place.data_files()) == 2
    assert place.open("event").position(QUERY) == Position(30, 29, "ingest/29.arrow", 1)


def test_info_says_what_is_in_a_table(place: Place) -> None:
    table = place.open()
    with pytest.raises(InvalidInput, match="there is no block"):
        table.info()
    put_numbers(table, 0, 4)
    found = table.info()
    assert (found.kind, found.rows, found.files, found.partition_by) == ("parquet", 4, 4, ())
    assert found.columns == (("id", "bigint"), ("event", "string"))
    assert found.positions == {QUERY: Position(4, 3, "ingest/3.arrow", 1)}
    table.compact()
    again = table.info()
    assert (again.rows, again.files, again.positions) == (4, 1, found.positions)
    assert again.last_commit_at is not None
    assert found.last_commit_at is not None
    assert again.last_commit_at >= found.last_commit_at


# Drivers that commit meanwhile


def test_a_driver_that_was_late_cannot_commit_into_a_slot_that_was_compacted_away(place: Place) -> None:
    late = staged(place.open(), [{"id": 999, "event": "late"}], 0)
    table = place.open()
    put_numbers(table, 0, 4)
    table.compact()
    table.vacuum(0)
    assert late.commit() is False
    assert ids(place.open()) == list(range(4))
    assert place.open().position(QUERY) == Position(4, 3, "ingest/3.arrow", 1)
    table.vacuum(0)
    assert ids(place.open()) == list(range(4))


def test_a_driver_whose_own_block_was_compacted_before_it_looked_again_keeps_its_files(fresh_name: str) -> None:
    """Its put has succeeded, and it is paused before it can know."""
    below = open_store(f"memory://{fresh_name}")
    other = ParquetTable(ObjectBlocks(below))

    def compact_meanwhile(*_: object) -> None:
        put_numbers(other, 1, 4)
        other.compact()

    class Paused(FaultyStore):
        def put_if_absent(self, path: str, data: Any, **more: Any) -> str:
            version = super().put_if_absent(path, data, **more)
            compact_meanwhile()
            return version

    attempt = staged(ParquetTable(ObjectBlocks(Paused(below, rates={}))), [{"id": 0, "event": "a"}], 0)
    assert attempt.commit() is False  # the caller looks at the position, and goes on there
    assert ids(other) == list(range(4))
    assert other.position(QUERY) == Position(4, 3, "ingest/3.arrow", 1)


def test_blocks_that_come_while_a_compaction_works_are_in_the_table_after(place: Place) -> None:
    table, driver = place.open(), place.open()
    put_numbers(driver, 0, 4)
    compacting = table.blocks.compacting

    def then_commit(*args: Any) -> Any:
        attempt = compacting(*args)
        put_numbers(driver, 4, 6)
        return attempt

    table.blocks.compacting = then_commit  # type: ignore[method-assign]
    assert table.compact().files_before == 4
    assert ids(place.open()) == list(range(6))
    assert place.open().info().files == 3
    put_numbers(driver, 6, 7)
    assert ids(place.open()) == list(range(7))


def test_a_commit_waits_while_the_directories_are_exchanged(disk: Place, tmp_path: Path) -> None:
    block = staged(disk.open(), [{"id": 0, "event": "a"}], 0)
    done = threading.Event()

    def commit() -> None:
        if block.commit():
            done.set()

    with DirectoryLock(str(tmp_path / "lake" / ".table.staging")):
        thread = threading.Thread(target=commit)
        thread.start()
        assert not done.wait(0.3)
        assert not disk.data_files()
    thread.join(30)
    assert done.is_set()


def test_drivers_commit_while_another_process_compacts_all_the_time(place: Place) -> None:
    table = place.open()
    failed: list[BaseException] = []
    is_over = threading.Event()

    def compact_and_read() -> None:
        mine = place.open()
        try:
            while not is_over.is_set():
                mine.compact()
                mine.vacuum(0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=compact_and_read)
    thread.start()
    put_numbers(table, 0, 60)
    is_over.set()
    thread.join(60)
    assert failed == []
    assert ids(place.open()) == list(range(60))
    assert place.open().position(QUERY) == Position(60, 59, "ingest/59.arrow", 1)


def test_two_compactions_at_once_do_no_harm(fresh_name: str) -> None:
    below = open_store(f"memory://{fresh_name}")
    table = ParquetTable(ObjectBlocks(below))
    put_numbers(table, 0, 4)
    first = ParquetTable(ObjectBlocks(below))
    compacting = first.blocks.compacting
    times: list[int] = []

    def then_another(*args: Any) -> Any:
        if not times:
            times.append(1)
            table.compact()
        return compacting(*args)

    first.blocks.compacting = then_another  # type: ignore[method-assign]
    assert first.compact() == Compacted()  # of what the other has left there is nothing to do
    assert ids(table) == list(range(4))
    assert table.info().files == 1


def test_a_second_compaction_on_a_disk_is_refused_while_one_runs(disk: Place, tmp_path: Path) -> None:
    table = disk.open()
    put_numbers(table, 0, 2)
    with (
        DirectoryLock(str(tmp_path / "lake" / ".table.staging" / ".maintenance")),
        pytest.raises(InvalidInput, match="is being compacted or vacuumed by another process"),
    ):
        table.compact()
    assert table.compact().files_after == 1


# Readers


def test_plain_readers_of_a_directory_see_the_rows_once(disk: Place) -> None:
    table = disk.open("event")
    put_numbers(table, 0, 10)
    for _ in range(2):
        assert plain_ids(disk.url) == list(range(10))
        found = duckdb.connect().execute(
            f"select id, event from read_parquet('{disk.url}/**/*.parquet', hive_partitioning=true)"
        )
        assert sorted(found.fetchall()) == [(n, "ab"[n % 2]) for n in range(10)]
        table.compact()


def test_what_a_reader_has_open_goes_on(disk: Place) -> None:
    table = disk.open()
    put_numbers(table, 0, 4)
    opened = [open(f"{disk.url}/{path}", "rb") for path in disk.data_files()]  # noqa: SIM115  closed below
    table.compact()
    table.vacuum(0)
    rows = [pyarrow.parquet.read_table(file).column("id").to_pylist() for file in opened]
    assert sorted(rows) == [[0], [1], [2], [3]]
    for file in opened:
        file.close()


def test_readers_of_an_object_store_that_began_before_go_on_until_the_vacuum(fresh_name: str) -> None:
    table = ParquetTable(ObjectBlocks(open_store(f"memory://{fresh_name}")))
    put_numbers(table, 0, 4)
    reader = ParquetTable(ObjectBlocks(open_store(f"memory://{fresh_name}"))).rows()
    found = next(reader).column("id").to_pylist()
    table.compact()
    table.vacuum(3600)
    found += [n for batch in reader for n in batch.column("id").to_pylist()]
    assert set(found) == set(range(4))
    assert len(found) == 4


def test_other_files_in_the_table_stay(disk: Place) -> None:
    table = disk.open()
    put_numbers(table, 0, 3)
    Path(disk.url, "_notes").mkdir()
    Path(disk.url, "_notes", "readme.txt").write_text("ours")
    Path(disk.url, "_link").symlink_to("_notes")
    table.compact()
    assert Path(disk.url, "_link", "readme.txt").read_text() == "ours"


# Vacuum


def test_a_vacuum_removes_what_was_replaced_once_it_is_old_enough(place: Place, tmp_path: Path) -> None:
    table = place.open()
    put_numbers(table, 0, 6)
    table.compact()
    assert table.vacuum(OLD).files == 0
    shown = table.vacuum(0, dry_run=True)
    assert shown.files >= 6
    assert shown.bytes > 0
    assert table.vacuum(0) == shown
    assert table.vacuum(0).files == 0
    assert ids(place.open()) == list(range(6))
    assert len(place.data_files()) == 1
    assert list(tmp_path.glob("lake/.table.staging/[!.]*")) == []


def test_a_vacuum_leaves_the_files_of_a_driver_at_work(place: Place) -> None:
    table = place.open()
    put_numbers(table, 0, 2)
    at_work = staged(place.open(), [{"id": 2, "event": "a"}], 2)
    table.compact()
    table.vacuum(0)
    assert at_work.commit()
    assert ids(table) == [0, 1, 2]


def test_an_age_below_zero_is_refused(place: Place) -> None:
    with pytest.raises(InvalidInput, match="older_than"):
        place.open().vacuum(-1)


# Where it is not possible


def test_a_file_system_without_an_exchange_is_refused_in_one_line(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = disk.open()
    put_numbers(table, 0, 3)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InvalidInput, match="cannot exchange two directories in one step"):
        table.compact()
    monkeypatch.undo()
    assert ids(table) == [0, 1, 2]


# Kills


@pytest.mark.parametrize("after", [False, True])
def test_a_compaction_killed_at_any_write_leaves_a_table_that_reads_right(fresh_name: str, after: bool) -> None:
    kills = 0
    for step in range(50):
        below = open_store(f"memory://{fresh_name}-{step}")
        table = ParquetTable(ObjectBlocks(below), ["event"])
        put_numbers(table, 0, 6)
        dying = ParquetTable(ObjectBlocks(Dying(below, Writes(step, after=after))), ["event"])
        try:
            dying.compact()
            dying.vacuum(0)
        except Killed:
            kills += 1
        else:
            break
        assert ids(table) == list(range(6))
        put_numbers(ParquetTable(ObjectBlocks(below), ["event"]), 6, 8)
        table.compact()
        table.vacuum(0)
        assert ids(table) == list(range(8))
    assert kills >= 6


def test_a_commit_of_a_compaction_is_known_by_its_nonce_however_the_store_answered(fresh_name: str) -> None:
    for fault in (Fault.APPLIED_THEN_CONFLICT, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.EXISTS_WHILE_ABSENT):
        below = open_store(f"memory://{fresh_name}-{fault}")
        put_numbers(ParquetTable(ObjectBlocks(below)), 0, 4)
        faulty = FaultyStore(below, rates={})
        faulty.inject(fault, operation="put_if_absent")
        try:
            assert ParquetTable(ObjectBlocks(faulty, sleep=lambda _: None)).compact().files_after == 1
        except StorageError:
            assert fault is Fault.ERROR_BEFORE
        assert ids(ParquetTable(ObjectBlocks(below))) == list(range(4))


KILLED_AT_EACH_STEP = """
import os, shutil, sys
from penstock.spark.tables.parquet import exchange, trees
from penstock.spark.tables.parquet.table import open_table

top, made = sys.argv[1:]
for step in range(500):
    table = f"{top}/{step}/table"
    shutil.copytree(made, f"{top}/{step}")
    child = os.fork()
    if not child:
        calls = 0
        def dying(function):
            def call(*args, **more):
                global calls
                calls += 1
                if calls > step:
                    os._exit(9)
                return function(*args, **more)
            return call
        for name in ("link", "rename", "mkdir", "fsync", "open", "unlink", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        trees.exchange = dying(trees.exchange)
        open_table(None, table, partition_by=["event"]).compact(1 << 20)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), status
    if status == 0:
        print(step)
        break
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table for each step at which a compaction of it was killed."""
    made = tmp_path_factory.mktemp("made")
    table = open_table(None, str(made / "table"), partition_by=["event"])
    put_block(table, [{"id": 100 + n, "event": os.urandom(8).hex()} for n in range(2)], 0)
    put_numbers(table, 1, 5)
    top = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EACH_STEP, str(top), str(made)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
    return top


def test_a_compaction_killed_at_any_step_leaves_a_directory_that_every_reader_reads_right(killed: Path) -> None:
    expected = [1, 2, 3, 4, 100, 101]
    compacted = 0
    for place in sorted(killed.iterdir(), key=lambda path: int(path.name)):
        url = str(place / "table")
        assert plain_ids(url) == expected, place
        table = open_table(None, url, partition_by=["event"])
        assert ids(table) == expected
        assert table.position(QUERY) == Position(5, 4, "ingest/4.arrow", 1)
        compacted += table.info().files < 6
        put_numbers(table, 5, 7)
        table.compact()
        table.vacuum(0)
        assert ids(open_table(None, url, partition_by=["event"])) == sorted([*expected, 5, 6])
        assert [path.name for path in (place / ".table.staging").iterdir()] == [".maintenance"]
    assert 0 < compacted < len(list(killed.iterdir()))


def test_files_of_a_commit_stay_where_the_compactions_cannot_be_listed_after_it(fresh_name: str) -> None:
    below = open_store(f"memory://{fresh_name}")
    faulty = FaultyStore(below, rates={})
    attempt = staged(ParquetTable(ObjectBlocks(faulty, sleep=lambda _: None)), [{"id": 0, "event": "a"}], 0)
    faulty.inject(Fault.READ_ERROR, operation="list_objects", path="_compacted", times=5)
    with pytest.raises(OutcomeUnknown, match="is put in"):
        attempt.commit()
    attempt.discard()
    assert ids(ParquetTable(ObjectBlocks(below))) == [0]
