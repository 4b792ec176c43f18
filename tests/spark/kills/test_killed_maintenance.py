"""`penstock table compact` and `vacuum`, killed at any time while a pipeline writes and readers read."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotFound
from tests.support.killed_commands import KILLED, Command, KilledCommands, killed_commands
from tests.support.plain_tables import put_numbers
from tests.support.waiting import together

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.spark.kills.kinds import DELTA, ICEBERG, PARQUET, TABLES, catalog_of, name_of, open_rows, read_column
from tests.spark.tables.iceberg.blocks import strangers_table

FIRST_BLOCKS = 24
BLOCKS_PER_KILL = 3
_LONG_AGO = 10 * 86_400.0


class Lake:
    """A table to which blocks of one number each are committed, from 0 on."""

    def __init__(self, top: Path, kind: str) -> None:
        self.kind = kind
        self.place = top / "table"
        self.table: Any = open_rows(kind, None, self.place)
        self.committed = 0
        where = [str(self.place)]
        if kind == ICEBERG:
            where = [name_of(self.place), "--catalog", f"warehouse={catalog_of(self.place)['warehouse']}"]
        self.compact = ["table", "compact", *where, "--target", "1m"]
        self.vacuum = ["table", "vacuum", *where, "--older-than", "0"]

    def put(self, blocks: int) -> None:
        for _ in range(blocks):
            put_numbers(self.table, self.committed, self.committed + 1)
            self.committed += 1

    def check(self) -> None:
        """Every number is there once, for readers that are not ours and for our own."""
        numbers = list(range(self.committed))
        for reader, found in read_column(self.kind, self.place, "id").items():
            assert sorted(found) == numbers, reader
        assert self._ours() == numbers
        assert self.table.info().positions["8f1c.default"].end == self.committed

    def check_while_it_changes(self, stop: threading.Event) -> int:
        """Read again and again; nothing that was committed before a read is missing, and nothing is twice."""
        reads = 0
        while not stop.is_set():
            before = range(self.committed)
            try:
                # Strangers who list directories may meet their exchange: then they have to read again.
                found = self._ours() if self.kind == PARQUET else self._theirs()
            except NotFound:
                continue
            count = Counter(found)
            assert not set(before) - count.keys()
            assert max(count.values()) == 1
            reads += 1
        return reads

    def _ours(self) -> list[int]:
        fresh: Any = open_rows(self.kind, None, self.place)
        return sorted(number for batch in fresh.rows() for number in batch.column("id").to_pylist())

    def _theirs(self) -> list[int]:
        return next(iter(read_column(self.kind, self.place, "id").values()))

    def files(self) -> set[str]:
        """All that is on the disk of data, manifests, and attempts."""
        top = self.place.parent
        found = {str(path) for end in ("parquet", "avro") for path in top.rglob(f"*.{end}")}
        found |= {str(path) for path in (top / ".table.staging").glob("[!.]*")}
        return {path for path in found if "/_delta_log/" not in path}

    def listed(self) -> set[str]:
        """What the table has of these, for readers that are not ours."""
        if self.kind == PARQUET:
            return {str(path) for path in self.place.rglob("*.parquet")}
        if self.kind == DELTA:
            import deltalake

            return {uri.removeprefix("file://") for uri in deltalake.DeltaTable(self.place).file_uris()}
        table = strangers_table(Path(catalog_of(self.place)["warehouse"]), name_of(self.place))
        found = {task.file.file_path for task in table.scan().plan_files()}
        for snapshot in table.snapshots():
            found |= {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(table.io))}
        return {path.removeprefix("file://") for path in found}

    def make_old(self) -> None:
        """As if all files had been written long ago: young ones may be of a process at work, and stay."""
        then = time.time() - _LONG_AGO
        for path in self.files():
            os.utime(path, (then, then))


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[KilledCommands]:
    with killed_commands(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", TABLES)
def test_no_row_is_lost_or_twice_however_often_a_compaction_and_a_vacuum_are_killed(
    kind: str, kills: int, tmp_path: Path, commands: KilledCommands
) -> None:
    lake, chance = Lake(tmp_path, kind), random.Random(kills)
    lake.put(FIRST_BLOCKS)
    commands.finish(*lake.compact)
    compacting = commands.seconds
    killed, reads = Counter[str](), 0
    while killed.total() < kills:
        stop = threading.Event()

        def run(stop: threading.Event = stop) -> int:
            try:
                command = Command(lake.compact, after=1.2 * compacting * chance.random())
                return commands.run(command).count(KILLED)
            finally:
                stop.set()

        def write() -> int:
            lake.put(BLOCKS_PER_KILL)
            return 0

        def read(stop: threading.Event = stop) -> int:
            return lake.check_while_it_changes(stop)

        died, _, read_now = together(run, write, read)
        killed["compact"] += died
        reads += read_now
        lake.check()
        if killed["compact"] > 2 * killed["vacuum"]:

            def compact() -> int:
                commands.finish(*lake.compact)
                return 0

            together(compact, write)

            def vacuum() -> int:
                command = Command(lake.vacuum, after=compacting * chance.random())
                return commands.run(command).count(KILLED)

            killed["vacuum"] += together(vacuum, write)[0]
            lake.check()
    commands.finish(*lake.compact)
    lake.make_old()
    commands.finish(*lake.vacuum)
    lake.check()
    assert lake.files() == lake.listed()
    assert lake.table.info().files == 1
    print(f"\n{dict(killed)} kills, {lake.committed} rows, {reads} reads meanwhile; lost 0, twice 0")
