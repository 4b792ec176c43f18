"""Tables take each block once: on a disk, on another file system of Hadoop's, and in an object store."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from penstock import open_store
from penstock.errors import CorruptData, InvalidInput, OutcomeUnknown, StorageError
from tests.support.servers import BUCKET, S3Server

pytest.importorskip("pyspark")

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructType

from penstock.spark.tables.contract import BlockId, Position
from penstock.spark.tables.parquet.commits import BlockFile, slot_name
from penstock.spark.tables.parquet.directories import DirectoryBlocks, LocalFiles
from penstock.spark.tables.parquet.table import ParquetTable, open_table, read_table

QUERY = "3d5c0c5e-8f0a-4b8e-9d6e-2f6a0c1b7a10"
OTHER_QUERY = "ffffffff-8f0a-4b8e-9d6e-2f6a0c1b7a10"
LAST = "ingest/the-last.batch"


def block(number: int = 0, query: str = QUERY, batches: int = 10) -> BlockId:
    """One of the blocks that follow each other, of ten batches each; or another cut at the same place."""
    return BlockId(query, 10 * number, 10 * number + batches, LAST)


def streamed(number: int = 0, end: int = 17, query: str = QUERY) -> BlockId:
    """A block that an earlier Penstock planned in a checkpoint of Spark's: its number is its name."""
    return BlockId(query, 0, end, number=number)


def name_of(slot: int = 0, query: str = QUERY) -> str:
    return slot_name(query, slot)


@dataclass
class Place:
    """Somewhere for a table, and a look at what is there."""

    spark: Any
    url: str
    look: Callable[[], list[str]]
    options: dict[str, str] = field(default_factory=dict)

    def open(self, *partition_by: str) -> ParquetTable:
        return open_table(self.spark, self.url, partition_by=partition_by, options=self.options)

    def on(self, files: LocalFiles) -> ParquetTable:
        """The table on a disk that a test gives it."""
        return ParquetTable(DirectoryBlocks(files, self.url, self.url))

    def read(self) -> Any:
        return read_table(self.spark, self.url, self.options)

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.read().collect())

    def data_files(self) -> list[str]:
        return [path for path in self.look() if path.endswith(".parquet")]


def below(directory: Path) -> list[str]:
    """Every file below a directory, hidden ones too; locks that our own store keeps there are no part of a table."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.fixture
def disk(spark: Any, tmp_path: Path) -> Place:
    return Place(spark, str(tmp_path / "lake" / "table"), lambda: below(tmp_path / "lake"))


@pytest.fixture
def hadoop(spark: Any, tmp_path: Path) -> Iterator[Place]:
    """A file system of another scheme, which leads to a local directory: with HDFS's interface, and without HDFS."""
    configuration = spark._jsc.hadoopConfiguration()
    name = f"fs.viewfs.mounttable.{tmp_path.name.replace('_', '-')}.link./data"
    (tmp_path / "lake").mkdir()
    configuration.set(name, f"file://{tmp_path}/lake")

    def look() -> list[str]:
        return [path for path in below(tmp_path / "lake") if not path.endswith(".crc")]

    yield Place(spark, f"viewfs://{tmp_path.name.replace('_', '-')}/data/table", look)
    configuration.unset(name)


@pytest.fixture
def bucket(spark: Any, s3_server: S3Server, fresh_name: str) -> Place:
    options = {name: str(value).lower() for name, value in s3_server.options.items()}
    url = f"s3://{BUCKET}/{fresh_name}"
    store = open_store(url, **options)
    return Place(spark, url, lambda: sorted(found.path for found in store.list_objects()), options)


@pytest.fixture(params=["disk", pytest.param("hadoop", marks=pytest.mark.slow), "bucket"])
def place(request: pytest.FixtureRequest) -> Place:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


@pytest.fixture(params=["disk", "bucket"])
def layout(request: pytest.FixtureRequest) -> Place:
    """One place of each layout, where Hadoop's other file systems add nothing."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found


@pytest.fixture
def session_time_zone(spark: Any) -> Iterator[Callable[[str], None]]:
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    yield lambda zone: spark.conf.set(name, zone)
    spark.conf.set(name, before)


def rows(spark: Any, *values: tuple[Any, ...], schema: str = "id bigint, event string") -> Any:
    return spark.createDataFrame(list(values), schema).coalesce(1)


# Blocks


def test_names_of_blocks_sort_as_their_first_sequences_do() -> None:
    names = [BlockId(QUERY, first, first + 1).name for first in (0, 2, 10, 999, 10**11)]
    assert names == sorted(names)
    assert names[1] == f"{QUERY}-000000000002" == streamed(2).name


@pytest.mark.parametrize(("query", "first", "number"), [("", 0, None), ("a/b", 0, None), ("..", 0, 1), ("q", -1, None)])
def test_a_block_of_no_query_or_place_is_refused(query: str, first: int, number: int | None) -> None:
    with pytest.raises(InvalidInput):
        BlockId(query, first, 17, number=number)
    with pytest.raises(InvalidInput):
        BlockId("q", 0, 17, number=-1)


def test_a_block_is_there_from_its_commit_on(place: Place) -> None:
    table = place.open()
    assert not table.has(block())
    staged = table.stage(rows(place.spark, (1, "a"), (2, "b")), block())
    assert not table.has(block())
    with pytest.raises(InvalidInput, match=r"no block in .* yet"):
        place.read()
    assert staged.rows == (None if place.url.startswith("viewfs") else 2)
    assert staged.commit()
    assert place.open().has(block())
    assert place.open().position(QUERY) == Position(10, 0, LAST, staged.rows)
    assert place.open().position(OTHER_QUERY) is None
    assert place.rows() == [(1, "a"), (2, "b")]
    assert place.read().columns == ["id", "event"]
    staged.discard()  # too late: it is the block
    assert place.rows() == [(1, "a"), (2, "b")]


def test_blocks_add_up(layout: Place) -> None:
    table = layout.open()
    for number in range(3):
        assert table.stage(rows(layout.spark, (number, "a")), block(number)).commit()
        assert layout.open().position(QUERY) == Position(10 * number + 10, 10 * number, LAST, 1)
    assert table.stage(rows(layout.spark, (9, "a")), block(0, query=OTHER_QUERY)).commit()
    assert layout.rows() == [(0, "a"), (1, "a"), (2, "a"), (9, "a")]
    assert [layout.open().has(block(number)) for number in (0, 2, 3)] == [True, True, False]


def test_a_block_may_begin_behind_the_position_where_those_between_had_no_rows(layout: Place) -> None:
    table = layout.open()
    assert table.stage(rows(layout.spark, (0, "a")), block(0)).commit()
    assert table.stage(rows(layout.spark, (5, "a")), block(5)).commit()
    assert layout.open().position(QUERY) == Position(60, 50, LAST, 1)
    assert layout.rows() == [(0, "a"), (5, "a")]


def test_what_is_discarded_leaves_nothing(place: Place) -> None:
    staged = place.open().stage(rows(place.spark, (1, "a")), block())
    assert place.data_files()
    staged.discard()
    staged.discard()
    assert place.look() == []
    if not place.options:
        with pytest.raises(StorageError):
            staged.commit()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("batches", [10, 3, 12])
@pytest.mark.parametrize("kind", ["disk", pytest.param("hadoop", marks=pytest.mark.slow), "bucket"])
def test_of_two_attempts_at_once_one_is_the_block_wherever_the_other_one_ends(
    kind: str, first: int, batches: int, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(kind)
    table, other = place.open("event"), place.open("event")
    df = rows(place.spark, (1, "a"), (2, "b"))
    attempts = [table.stage(df, block()), other.stage(df, block(batches=batches))]
    assert len(place.data_files()) == 4
    assert attempts[first].commit()
    assert not attempts[1 - first].commit()
    assert len(place.data_files()) == 2
    assert sorted(place.rows()) == [(1, "a"), (2, "b")]


def test_an_attempt_that_comes_after_the_commit_leaves_nothing(layout: Place) -> None:
    table = layout.open()
    assert table.stage(rows(layout.spark, (1, "a")), block()).commit()
    before = layout.look()
    for other in (table, layout.open()):
        for late in (block(), block(batches=4), block(batches=12)):
            assert not other.stage(rows(layout.spark, (1, "a")), late).commit()
    assert layout.look() == before


def test_what_a_killed_driver_staged_is_swept_by_the_next_ones_commit(place: Place) -> None:
    df = rows(place.spark, (1, "a"))
    killed = place.open().stage(df, block())
    assert place.open().stage(df, block()).commit()
    assert len(place.data_files()) == 1
    assert not killed.commit()  # its JVM lived on for a while
    assert place.rows() == [(1, "a")]


def test_a_streamed_block_that_ends_elsewhere_is_an_error_that_names_both_ends_and_the_remedy(place: Place) -> None:
    table = place.open()
    assert table.stage(rows(place.spark, (1, "a")), streamed()).commit()
    before = place.look()
    moved = streamed(end=12)
    with pytest.raises(CorruptData) as caught:
        table.has(moved)
    text = str(caught.value)
    at = f"_commits/{moved.name}.json" if place.options else f"table/block={moved.name} "
    for part in (streamed().end_text, moved.end_text, at, "Nothing of the block is acked: remove", "run again"):
        assert part in text
    staged = table.stage(rows(place.spark, (2, "a")), moved)
    with pytest.raises(CorruptData):
        staged.commit()
    assert place.look() == before


@pytest.mark.parametrize("partition_by", [(), ("event",)])
def test_a_block_without_rows_is_a_block(layout: Place, partition_by: tuple[str, ...]) -> None:
    table = layout.open(*partition_by)
    assert table.stage(rows(layout.spark, (1, "a")).where("id > 1"), block()).commit()
    assert layout.open(*partition_by).has(block())
    assert layout.read().schema.simpleString() == "struct<id:bigint,event:string>"
    assert layout.rows() == []
    assert table.stage(rows(layout.spark, (1, "a")), block(1)).commit()
    assert layout.rows() == [(1, "a")]


TYPES = """flag boolean, tiny tinyint, small smallint, whole int, large bigint, f float, d double, money decimal(20, 4),
    text string, bytes binary, day date, at timestamp, clock timestamp_ntz,
    many array<struct<at: timestamp, n: int>>, named map<string, array<decimal(5, 2)>>,
    `odd.na``me` struct<x: binary>"""
INSTANT = dt.datetime(2024, 3, 31, 1, 30, 0, 123456, tzinfo=dt.UTC)  # in Berlin an hour that there was not


def test_every_type_comes_back_as_it_went_in_whatever_the_sessions_time_zone(
    layout: Place, session_time_zone: Callable[[str], None]
) -> None:
    full = (
        *(True, -8, 300, 70_000, 1 << 40, 0.5, 0.1, Decimal("1234567.8901"), "zß水", b"\x00\xff"),
        *(dt.date(1969, 12, 31), INSTANT, dt.datetime(2024, 3, 31, 2, 30)),
        *([(INSTANT, 1), (None, None), None], {"a": [Decimal("1.25"), None], "b": None}, (b"x",)),
    )
    session_time_zone("America/New_York")
    df = layout.spark.createDataFrame([full, (None,) * len(full)], TYPES)
    assert layout.open().stage(df, block()).commit()
    instants = [row[0] for row in df.select(F.unix_micros("at")).collect()]
    session_time_zone("Asia/Tokyo")
    back = layout.read()
    assert back.schema == df.schema
    assert sorted(map(repr, back.collect())) == sorted(map(repr, df.collect()))
    assert {row[0] for row in back.select(F.unix_micros("at")).collect()} == set(instants)
    assert int(INSTANT.timestamp()) * 10**6 + 123456 in instants


def test_columns_that_are_not_null_come_back(layout: Place) -> None:
    inner = StructType().add("x", IntegerType(), False)
    schema = StructType().add("id", LongType(), False).add("at", inner, False)
    schema = schema.add("m", MapType(StringType(), ArrayType(IntegerType(), False), False), False)
    df = layout.spark.createDataFrame([(1, (2,), {"a": [3]})], schema)
    assert layout.open().stage(df, block()).commit()
    assert [tuple(row) for row in layout.read().collect()] == [(1, (2,), {"a": [3]})]


PARTITIONS = "word string, n bigint, small smallint, money decimal(10, 2), flag boolean, day date, at timestamp"


def test_partition_values_of_every_kind_come_back_with_their_types(
    place: Place, session_time_zone: Callable[[str], None]
) -> None:
    words = ["1", "01", "a/b=c", "%2F", "é水 x", "a\\b{c}[d]?*:'\"#^", ".", "null", None]
    whole = (7, 3, Decimal("1.50"), True, dt.date(2024, 2, 29), INSTANT)
    values = [(number, word, *whole) for number, word in enumerate(words)] + [(99, *(None,) * 7)]
    session_time_zone("America/New_York")
    df = place.spark.createDataFrame(values, f"id bigint, {PARTITIONS}")
    columns = df.columns[1:]
    assert place.open(*columns).stage(df, block()).commit()
    assert any("word=a%2Fb%3Dc/n=7/small=3/money=1.50/flag=true/day=2024-02-29" in path for path in place.look())
    expected = sorted(map(repr, df.select("*", F.unix_micros("at")).collect()))
    session_time_zone("Asia/Tokyo")
    back = place.read()
    assert back.schema == df.schema
    session_time_zone("America/New_York")
    assert sorted(map(repr, back.select("*", F.unix_micros("at")).collect())) == expected


def test_later_blocks_may_have_more_columns(layout: Place) -> None:
    table = layout.open("event")
    first = rows(layout.spark, (1, "a", [(1,)]), schema="id bigint, event string, more array<struct<x: int>>")
    later = "extra double, id bigint, event string, more array<struct<x: int, y: string>>"
    assert table.stage(first, block()).commit()
    assert table.stage(rows(layout.spark, (0.5, 2, "b", [(2, "z")]), schema=later), block(1)).commit()
    back = layout.read()
    assert (
        back.schema.simpleString() == "struct<id:bigint,event:string,more:array<struct<x:int,y:string>>,extra:double>"
    )
    assert layout.rows() == [(1, "a", [(1, None)], None), (2, "b", [(2, "z")], 0.5)]


def test_without_evolution_a_table_takes_the_columns_that_it_has(disk: Place) -> None:
    table = open_table(disk.spark, disk.url, schema_evolution="none")
    first = "id bigint, at struct<x: int>, event string"
    assert table.stage(rows(disk.spark, (1, (1,), "a"), schema=first), block()).commit()
    assert table.stage(rows(disk.spark, ("b",), schema="event string"), block(1)).commit()  # fewer are fine
    for schema, new in (
        ("event string, more double", "more double"),
        ("id bigint, at struct<x: int, y: int>", "at struct<x:int,y:int>"),
    ):
        wider = disk.spark.createDataFrame([], schema)
        with pytest.raises(InvalidInput, match=f"does not have {new}, and schema_evolution is 'none'"):
            table.stage(wider, block(2))
    assert len(disk.data_files()) == 2


def test_the_type_of_a_column_stays_though_blocks_between_do_not_have_it(layout: Place) -> None:
    for number, schema in enumerate(("event string", "event string, id bigint", "event string")):
        values = ("a", 1)[: len(schema.split(","))]
        assert layout.open().stage(rows(layout.spark, values, schema=schema), block(number)).commit()
    for schema, problem in (
        ("event string, id string", "'id' is bigint"),
        ("event string, ID bigint", "a column 'id'"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            layout.open().check(layout.spark.createDataFrame([], schema).schema)
    layout.open().check(layout.spark.createDataFrame([], "event string, id bigint, more int").schema)
    assert layout.read().count() == 3


def test_a_column_of_two_types_is_named(layout: Place) -> None:
    texts = rows(layout.spark, ("x", "a"), schema="id string, event string")
    other = layout.open()
    other.check(texts.schema)  # by a driver that looked before the first block was there
    assert layout.open().stage(rows(layout.spark, (1, "a")), block()).commit()
    assert other.stage(texts, block(1)).commit()
    with pytest.raises(InvalidInput, match=f"'id' is bigint in earlier blocks .* string in the block {name_of(1)}"):
        layout.read()


@pytest.mark.parametrize(
    ("schema", "partition_by", "problem"),
    [
        ("id int, Block string", (), "'Block' is in the way"),
        ("id int, Id string", (), "'Id' twice"),
        ("id int, event string", ("evnt",), "'evnt', and the block has only id, event"),
        ("id int, event double", ("event",), "'event', which is double"),
        ("id int", ("id",), "every column"),
    ],
)
def test_columns_that_a_table_cannot_take_are_refused_before_anything_is_written(
    layout: Place, schema: str, partition_by: tuple[str, ...], problem: str
) -> None:
    df = layout.spark.createDataFrame([], schema)
    with pytest.raises(InvalidInput, match=problem):
        layout.open(*partition_by).stage(df, block())
    assert layout.look() == []


def test_a_table_keeps_its_partitions(layout: Place) -> None:
    assert layout.open("event").stage(rows(layout.spark, (1, "a")), block()).commit()
    with pytest.raises(InvalidInput, match=r"partitioned by \['event'\], not by \[\]"):
        layout.open().stage(rows(layout.spark, (1, "a")), block(1))


def test_a_job_that_fails_leaves_nothing(place: Place) -> None:
    bad = place.spark.range(0, 100_000, 1, 1).withColumn("event", (F.col("id") % 2).cast("string"))
    bad = bad.withColumn("x", F.expr("if(id = 99999, raise_error('a bad row'), id)"))
    table = place.open("event")
    with pytest.raises(Exception, match="a bad row"):
        table.stage(bad, block())
    if not place.options:
        # In a bucket a task that Spark has not cancelled yet may still put its files: no commit lists them.
        assert place.look() == []
    assert table.stage(rows(place.spark, (1, "a")), block()).commit()
    assert place.rows() == [(1, "a")]


def test_a_commit_sweeps_earlier_blocks_of_its_query_and_of_no_other(disk: Place) -> None:
    df = rows(disk.spark, (1, "a"))
    table = disk.open()
    for name in (streamed(3), streamed(5), streamed(3, query=OTHER_QUERY)):
        table.stage(df, name)
    assert table.stage(df, streamed(4)).commit()
    kept = {path.split("/")[1] for path in disk.look() if path.startswith(".table.staging/")}
    assert {name[:-33] for name in kept} == {streamed(5).name, streamed(3, query=OTHER_QUERY).name}


# Places


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3a://bucket/table", "write s3:// for s3a://"),
        ("abfss://container@account/table", "write az:// for abfss://"),
        ("nope://host/table", 'No .*FileSystem.* for scheme "?nope'),
        ("file://host/table", "three slashes"),
        ("s3://?/table", "bucket|query"),
        ("/", "mounted"),
        (__file__, "is a file"),
    ],
)
def test_a_place_where_no_table_can_be_is_refused(spark: Any, url: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        open_table(spark, url)
    with pytest.raises(InvalidInput, match=problem):
        read_table(spark, url)


@pytest.mark.parametrize(
    ("partition_by", "problem"),
    [(["a", "A"], "twice"), ("event", "a list of names"), (["block"], "in the way"), ([""], "a list of names")],
)
def test_partitions_that_cannot_be_right_are_refused(
    spark: Any, tmp_path: Path, partition_by: Any, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        open_table(spark, str(tmp_path / "table"), partition_by=partition_by)


def test_options_are_for_object_stores_and_are_not_repeated(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="secret_access_key") as caught:
        open_table(spark, str(tmp_path / "table"), options={"secret_access_key": "hunter22"})
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("name", ["ta b[c]{d}*?", "é%20%", "a\\b"])
def test_a_tables_name_is_no_pattern(spark: Any, tmp_path: Path, name: str) -> None:
    place = Place(spark, str(tmp_path / name), lambda: below(tmp_path))
    assert place.open("event").stage(rows(spark, (1, "a")), block()).commit()
    assert place.rows() == [(1, "a")]
    as_url = Place(spark, place.open().url, place.look)
    assert as_url.open("event").has(block())
    assert as_url.rows() == [(1, "a")]


def test_a_table_behind_a_link_is_staged_beside_the_real_one(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "real" / "table").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "table")
    table = open_table(spark, str(tmp_path / "link"))
    staged = table.stage(rows(spark, (1, "a")), block())
    assert (tmp_path / "real" / ".table.staging").is_dir()
    assert staged.commit()
    assert read_table(spark, str(tmp_path / "link")).count() == 1


# On disk


def test_plain_readers_see_nothing_of_a_block_before_its_commit_and_all_of_it_after(disk: Place) -> None:
    table = disk.open("event")
    assert table.stage(rows(disk.spark, (1, "a")), block()).commit()
    staged = table.stage(rows(disk.spark, (2, "b"), (3, "b")), block(1))

    def seen() -> list[list[int]]:
        by_spark = [row["id"] for row in disk.spark.read.parquet(disk.url).collect()]
        by_arrow: Any = pyarrow.dataset.dataset(disk.url, format="parquet", partitioning="hive").to_table()
        return [sorted(by_spark), sorted(by_arrow["id"].to_pylist())]

    assert seen() == [[1], [1]]
    assert staged.commit()
    assert seen() == [[1, 2, 3], [1, 2, 3]]
    assert disk.spark.read.parquet(disk.url).columns == ["id", "block", "event"]


def test_a_block_holds_its_data_and_its_commit_and_nothing_of_sparks(disk: Place) -> None:
    assert disk.open("event").stage(rows(disk.spark, (1, "a"), (2, "b")), block()).commit()
    home = Path(disk.url) / f"block={name_of()}"
    commit = json.loads((home / "_commit.json").read_text())
    assert below(home) == sorted(["_commit.json", *(file["path"] for file in commit["files"])])
    assert [file["size"] for file in commit["files"]] == [
        (home / file["path"]).stat().st_size for file in commit["files"]
    ]
    assert (commit["block"], commit["first"], commit["end"]) == (name_of(), 0, block().end_text)
    assert commit["rows"] == sum(file["rows"] for file in commit["files"]) == 2
    assert commit["partition_by"] == ["event"]
    assert [column["name"] for column in commit["schema"]["fields"]] == ["id", "event"]


def test_a_block_is_durable_before_it_is_renamed_and_its_name_before_it_counts(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str]] = []
    by_tasks: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_sync(descriptor: int) -> None:
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_rename(path: str, to: str) -> None:
        if to.endswith(".parquet"):
            by_tasks.append(to)  # which have synced it, in their own processes
        else:
            inside = {str(found) for found in Path(path).rglob("*")} | {path}
            assert inside <= {where for what, where in done if what == "sync"} | set(by_tasks)
        done.append(("rename", to))
        rename(path, to)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    assert disk.open("event").stage(rows(disk.spark, (1, "a")), block()).commit()
    after = done[done.index(("rename", f"{disk.url}/block={name_of()}")) :]
    assert len(by_tasks) == 1
    assert ("sync", disk.url) in after
    assert ("sync", str(Path(disk.url).parent)) in after
    done.clear()
    assert disk.open("event").has(block())
    assert ("sync", disk.url) in done


class Odd(LocalFiles):
    """A disk that does something odd, once, at one step."""

    def __init__(self, step: str, oddity: Callable[..., object]) -> None:
        self._step = step
        self._oddity: Callable[..., object] | None = oddity

    def _once(self, step: str, *args: str) -> None:
        if step == self._step and self._oddity is not None:
            oddity, self._oddity = self._oddity, None
            oddity(*args)

    def finish(self, path: str) -> list[BlockFile]:
        self._once("finish", path)
        return super().finish(path)

    def move(self, path: str, to: str) -> None:
        if "/table/block=" in to:
            self._once("move", path, to)
        super().move(path, to)

    def settle(self, path: str) -> None:
        self._once("settle", path)
        super().settle(path)


def failing(*_: str) -> None:
    raise StorageError("the disk is on fire")


def test_a_block_whose_driver_was_killed_before_its_name_was_synced_counts_once_it_is(disk: Place) -> None:
    other_attempt = disk.open().stage(rows(disk.spark, (1, "a")), block())
    staged = disk.on(Odd("settle", failing)).stage(rows(disk.spark, (1, "a")), block())
    with pytest.raises(OutcomeUnknown, match="may not be durable"):
        staged.commit()
    staged.discard()
    with pytest.raises(OutcomeUnknown):
        disk.on(Odd("settle", failing)).has(block())
    assert len(disk.data_files()) == 2
    assert disk.open().has(block())
    assert len(disk.data_files()) == 1
    assert not other_attempt.commit()
    assert disk.rows() == [(1, "a")]


def test_a_rename_that_failed_leaves_the_block_to_be_tried_again_or_discarded(disk: Place) -> None:
    staged = disk.on(Odd("move", failing)).stage(rows(disk.spark, (1, "a")), block())
    with pytest.raises(StorageError, match="on fire"):
        staged.commit()
    assert not disk.open().has(block())
    assert staged.commit()
    assert disk.rows() == [(1, "a")]


def test_a_rename_of_ones_own_that_is_reported_as_failed_is_known_by_its_nonce(disk: Place) -> None:
    # As over NFS, when the reply is lost and the request is sent again.
    staged = disk.on(Odd("move", LocalFiles().move)).stage(rows(disk.spark, (1, "a")), block())
    assert staged.commit()
    assert disk.rows() == [(1, "a")]


def test_half_of_a_block_that_was_swept_while_it_was_written_does_not_become_one(disk: Place) -> None:
    class WrittenBySpark(Odd):
        """As a file system that only the JVM reaches."""

        tasks_write = False

    def sweep_and_go_on(path: str) -> None:
        """Another driver commits the block; then a task of this job, which does not know, writes one more file."""
        assert disk.open().stage(rows(disk.spark, (9, "z")), block()).commit()
        assert not os.path.exists(path)
        disk.spark.range(1).write.parquet(f"file://{path}")

    table = disk.on(WrittenBySpark("finish", sweep_and_go_on))
    assert not table.stage(rows(disk.spark, (1, "a")), block()).commit()
    assert disk.rows() == [(9, "z")]
    assert all(path.startswith("table/") for path in disk.look())


def test_half_of_a_block_that_was_swept_while_tasks_wrote_it_does_not_become_one(disk: Place) -> None:
    table = disk.open()
    writer = table.writer(rows(disk.spark, (1, "a")).schema, block())
    assert writer is not None
    files, batch = writer.open(0), pa.RecordBatch.from_pylist([{"id": 1, "event": "a"}], schema=writer.schema)
    files.add(batch)
    described = files.close()
    assert disk.open().stage(rows(disk.spark, (9, "z")), block()).commit()  # by another driver, which sweeps
    late = writer.open(1)  # a task of this one's, which does not know
    late.add(batch)
    assert not table.staged(block(), [*described, *late.close()]).commit()
    assert disk.rows() == [(9, "z")]
    assert all(path.startswith("table/") for path in disk.look())


def test_a_task_syncs_its_files_before_it_reports_them(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync
    writer = disk.open("event").writer(rows(disk.spark, (1, "a")).schema, block())
    assert writer is not None
    files = writer.open(0)
    files.add(pa.RecordBatch.from_pylist([{"id": 1, "event": "a"}, {"id": 2, "event": "b"}], schema=writer.schema))

    def note_sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    paths = [json.loads(one)["path"] for one in files.close()]
    assert len(paths) == 2
    assert sorted(path.partition(".tasks/")[2] for path in synced) == sorted(paths)


def test_what_is_no_block_is_named(disk: Place) -> None:
    home = Path(disk.url) / f"block={name_of()}"
    home.mkdir(parents=True)
    (home / "stray.parquet").write_bytes(b"")
    for look in (lambda: disk.open().has(block()), disk.read):
        with pytest.raises(CorruptData, match=f"{home.name} has no _commit.json"):
            look()
    (home / "_commit.json").write_bytes(b'{"version": 1}')
    for look in (lambda: disk.open().has(block()), disk.read):
        with pytest.raises(CorruptData, match=r"_commit\.json is not the commit of a block"):
            look()


def test_removing_the_block_that_the_error_names_is_the_remedy(disk: Place) -> None:
    table = disk.open()
    assert table.stage(rows(disk.spark, (1, "a")), streamed()).commit()
    moved = streamed(end=12)
    with pytest.raises(CorruptData) as caught:
        table.has(moved)
    shutil.rmtree(str(caught.value).partition("remove ")[2].partition(" and run")[0])
    assert not table.has(moved)
    assert table.stage(rows(disk.spark, (2, "b")), moved).commit()
    assert disk.rows() == [(2, "b")]


def test_a_table_is_where_its_url_says(disk: Place) -> None:
    assert disk.open().url == f"file://{disk.url}"
    assert repr(disk.open()) == f"ParquetTable(file://{disk.url})"


@pytest.mark.slow
def test_timestamps_that_spark_itself_writes_say_their_zone_and_the_session_keeps_its_setting(hadoop: Place) -> None:
    name = "spark.sql.parquet.outputTimestampType"
    before = hadoop.spark.conf.get(name)
    df = hadoop.spark.createDataFrame([(1, INSTANT)], "id bigint, at timestamp").coalesce(1)
    assert hadoop.open().stage(df, block()).commit()
    [file] = hadoop.data_files()
    root = Path(hadoop.spark._jsc.hadoopConfiguration().get(_link_of(hadoop)).removeprefix("file://"))
    assert pq.read_schema(root / file).field("at").type == pa.timestamp("us", "UTC")
    assert hadoop.spark.conf.get(name) == before


def _link_of(hadoop: Place) -> str:
    return f"fs.viewfs.mounttable.{hadoop.url.split('/')[2]}.link./data"
