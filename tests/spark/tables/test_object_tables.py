"""Tables in object stores: commits that meet every fault, files of bounded size, and what readers obey."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import open_store
from penstock.errors import CorruptData, OutcomeUnknown, StorageError
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.support.servers import BUCKET, S3Server

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructField, StructType

from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.destinations import InStore
from penstock.spark.tables.listed_files import ListedFile, group_files
from penstock.spark.tables.parquet.commits import BlockCommit, BlockFile, slot_name
from penstock.spark.tables.parquet.objects import ObjectBlocks
from penstock.spark.tables.parquet.table import ParquetTable, StagedFiles, open_table, read_table
from penstock.spark.tables.parquet.task_files import ParquetWriter
from penstock.spark.tables.rows_by_partition import split

BLOCK = BlockId("3d5c0c5e-8f0a-4b8e-9d6e-2f6a0c1b7a10", 4, 17, "ingest/the-last.batch")
NAME = slot_name(BLOCK.query, 0)
COMMIT = f"_commits/{NAME}.json"
SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture
def options(s3_server: S3Server) -> dict[str, str]:
    return {name: str(value).lower() for name, value in s3_server.options.items()}


@pytest.fixture
def url(fresh_name: str) -> str:
    return f"s3://{BUCKET}/{fresh_name}"


@pytest.fixture
def store(url: str, options: dict[str, str]) -> ObjectStore:
    return open_store(url, **options)


def table_in(store: ObjectStore, **settings: Any) -> ParquetTable:
    return ParquetTable(ObjectBlocks(store, **settings))


def paths(store: ObjectStore) -> list[str]:
    return sorted(found.path for found in store.list_objects())


def staged(
    store: ObjectStore, nonce: str, block: BlockId = BLOCK, *, through: ObjectStore | None = None
) -> StagedFiles:
    """An attempt as it is when its executors are done, with one file. It goes on through another store, if given."""
    store.put(file_of(nonce), b"rows")
    name = NAME if block.number is None else block.name
    commit = BlockCommit.of(name, block, nonce, SCHEMA, (), [BlockFile(file_of(nonce), 4, 1)])
    return StagedFiles(table_in(through or store, sleep=lambda _: None), block, commit)


def file_of(nonce: str) -> str:
    return f"block={NAME}/part-00000-{nonce}-x.parquet"


# Commits


@pytest.mark.parametrize(
    "fault", [Fault.APPLIED_THEN_CONFLICT, Fault.ERROR_AFTER, Fault.ERROR_BEFORE, Fault.EXISTS_WHILE_ABSENT, Fault.LATE]
)
def test_a_commit_of_ones_own_is_known_by_its_nonce_however_the_store_answered(
    store: ObjectStore, fault: Fault
) -> None:
    faulty = FaultyStore(store, rates={})
    attempt = staged(faulty, "a" * 32)
    faulty.inject(fault, operation="put_if_absent", path=COMMIT)
    assert attempt.commit()
    assert faulty.planned == []
    faulty.settle()
    attempt.discard()
    assert paths(store) == [COMMIT, file_of("a" * 32)]
    assert table_in(store).has(BLOCK)


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_anothers_commit_is_never_taken_for_ones_own(store: ObjectStore, fault: Fault) -> None:
    other = staged(store, "b" * 32)
    faulty = FaultyStore(store, rates={}, third_party=lambda *_: other.commit())
    attempt = staged(faulty, "a" * 32)
    faulty.inject(Fault.THIRD_PARTY_BEFORE, operation="put_if_absent", path=COMMIT)
    faulty.inject(fault, operation="put_if_absent", path=COMMIT)
    assert not attempt.commit()
    assert paths(store) == [COMMIT, file_of("b" * 32)]


def test_files_of_a_commit_that_may_have_happened_stay(store: ObjectStore) -> None:
    faulty = FaultyStore(store, rates={})
    attempt = staged(faulty, "a" * 32)
    faulty.inject(Fault.EXISTS_WHILE_ABSENT, operation="put_if_absent", times=5)
    with pytest.raises(OutcomeUnknown, match=f"block {NAME} may be committed"):
        attempt.commit()
    attempt.discard()
    assert paths(store) == [file_of("a" * 32)]
    faulty.inject(Fault.LATE, operation="put_if_absent", path=COMMIT)
    faulty.inject(Fault.READ_ERROR, operation="get", path=COMMIT, times=5)
    faulty.inject(Fault.EXISTS_WHILE_ABSENT, operation="put_if_absent", times=4)
    with pytest.raises(OutcomeUnknown, match="injected: get"):
        attempt.commit()
    attempt.discard()
    faulty.settle()
    assert table_in(store).has(BLOCK)
    assert paths(store) == [COMMIT, file_of("a" * 32)]


def test_a_commit_that_was_refused_did_not_happen(url: str, options: dict[str, str]) -> None:
    class Refusing(FaultyStore):
        def put_if_absent(self, path: str, data: Any, **_: Any) -> str:
            raise StorageError("not with this key")

    store = open_store(url, **options)
    attempt = staged(Refusing(store, rates={}), "a" * 32)
    with pytest.raises(StorageError, match="not with this key"):
        attempt.commit()
    attempt.discard()
    assert paths(store) == []


def test_under_any_faults_one_attempt_is_the_block_and_all_its_files_are_there() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(100):
        below = open_store(f"memory://object-table-faults-{seed}")
        rates = dict.fromkeys(set(Fault) - {Fault.DELAY}, 0.15) | {Fault.READ_ERROR: 0.9 if seed % 2 else 0.15}
        faulty = FaultyStore(below, seed, rates=rates)
        attempts = {digit * 32: staged(below, digit * 32, through=faulty) for digit in "abc"}
        won = []
        for nonce, attempt in attempts.items():
            try:
                is_ours = attempt.commit()
                outcomes["won" if is_ours else "lost"] += 1
                won += [nonce] if is_ours else []
            except StorageError:
                outcomes["failed"] += 1
                with suppress(StorageError):
                    attempt.discard()
        faulty.settle()
        table = table_in(below)
        if not table.has(BLOCK):
            assert won == []
            continue
        [commit] = table.blocks.commits()
        assert paths(below) == [COMMIT, commit.files[0].path]
        assert won in ([], [commit.nonce])
    assert set(outcomes) == {"won", "lost", "failed"}


def test_a_sweep_that_fails_does_not_undo_a_commit(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    staged(store, "b" * 32)
    faulty = FaultyStore(store, rates={})
    attempt = staged(faulty, "a" * 32)
    faulty.inject(Fault.READ_ERROR, operation="list_objects", path=f"block={NAME}")
    assert attempt.commit()
    assert "files of attempts that lost stay" in caplog.text
    assert file_of("b" * 32) in paths(store)
    assert table_in(store).has(BLOCK)
    assert paths(store) == [COMMIT, file_of("a" * 32)]


def test_removing_the_commit_that_the_error_names_is_the_remedy(store: ObjectStore, url: str) -> None:
    assert staged(store, "a" * 32, BlockId(BLOCK.query, 4, 17, number=0)).commit()
    moved = BlockId(BLOCK.query, 4, 12, number=0)
    with pytest.raises(CorruptData) as caught:
        table_in(store).has(moved)
    named = str(caught.value).partition("remove ")[2].partition(" and run")[0]
    assert named == f"{url}/{COMMIT}"
    store.delete([COMMIT])
    assert staged(store, "b" * 32, moved).commit()
    assert paths(store) == [COMMIT, file_of("b" * 32)]


def test_a_commit_that_cannot_be_read_is_named(store: ObjectStore) -> None:
    for data in (b"{}", b"\xff", json.dumps({"version": 2}).encode()):
        store.put(COMMIT, data)
        with pytest.raises(CorruptData, match=COMMIT):
            table_in(store).has(BLOCK)


# Files


def written(store: ObjectStore, batches: list[pa.RecordBatch], *partition_by: str, file_bytes: int = 1 << 20) -> Any:
    files = ParquetWriter(batches[0].schema, partition_by, InStore(store, "top"), "n" * 32, file_bytes).open(0)
    for batch in batches:
        files.add(batch)
    described = [json.loads(one) for one in files.close()]
    return described, [pq.read_table(pa.BufferReader(store.get(f"top/{row['path']}").data)) for row in described]


def test_files_are_closed_when_they_are_large_enough() -> None:
    store = open_store("memory://object-table-sizes")
    noise = [
        pa.array([bytes([n % 256]) * 8 + n.to_bytes(8) for n in range(start, start + 40_000)]) for start in (0, 9, 99)
    ]
    big = pa.array([b"x" * 500 + n.to_bytes(8) for n in range(40_000)])
    batches = [pa.RecordBatch.from_arrays([one, big], ["a", "b"]) for one in noise]
    described, tables = written(store, batches, file_bytes=1000)
    assert [row["rows"] for row in described] == [40_000] * 3
    assert pa.concat_tables(tables) == pa.Table.from_batches(batches)
    assert [row["size"] for row in described] == [store.head(f"top/{row['path']}").size for row in described]


def test_small_batches_share_a_file() -> None:
    store = open_store("memory://object-table-small")
    batches = [pa.RecordBatch.from_pydict({"a": [n]}) for n in range(50)]
    described, tables = written(store, batches)
    assert [row["rows"] for row in described] == [50]
    assert tables[0].column("a").to_pylist() == list(range(50))


def test_each_file_is_of_one_partition() -> None:
    store = open_store("memory://object-table-partitions")
    batches = [
        pa.RecordBatch.from_pydict({"id": [1, 2, 3], "e": ["a", "a", "b"], "n": [1, 1, 1]}),
        pa.RecordBatch.from_pydict({"id": [4, 5, 6], "e": ["b", "b", None], "n": [1, 2, 2]}),
    ]
    described, tables = written(store, batches, "e", "n")
    assert [(row["values"], table.to_pydict()) for row, table in zip(described, tables, strict=True)] == [
        (["a", "1"], {"id": [1, 2]}),
        (["b", "1"], {"id": [3, 4]}),
        (["b", "2"], {"id": [5]}),
        ([None, "2"], {"id": [6]}),
    ]
    assert described[3]["path"].startswith("e=__HIVE_DEFAULT_PARTITION__/n=2/part-00000-" + "n" * 32)


def test_rows_that_are_not_sorted_are_split_into_one_part_for_each_value_and_keep_their_order() -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2, 3, 4], "e": ["a", None, None, "a"]})
    found = [(values, rows.column("id").to_pylist()) for values, rows in split(batch, ["e"])]
    assert found == [(("a",), [1, 4]), ((None,), [2, 3])]
    assert list(split(batch.slice(0, 0), ["e"])) == []
    assert [values for values, _ in split(batch.slice(0, 1), ["e"])] == [("a",)]


def test_files_are_read_in_groups_of_about_one_large_file() -> None:
    mib = 1 << 20
    files = [ListedFile(str(n), size * mib, {}) for n, size in enumerate([30, 30, 30, 100, 1, 1])]
    assert [[int(file.path) for file in group] for group in group_files(files, 64 * mib)] == [[0, 1], [2], [3], [4, 5]]
    assert group_files([], 64 * mib) == []


# With Spark


def test_read_table_obeys_the_commits_and_plain_readers_do_not(
    spark: Any, store: ObjectStore, url: str, options: dict[str, str]
) -> None:
    table = open_table(spark, url, options=options)
    assert table.stage(spark.range(3), BLOCK).commit()
    later = BlockId(BLOCK.query, BLOCK.end, BLOCK.end + 1)
    table.stage(spark.range(10, 20), later)  # its driver was killed
    assert any(f"block={slot_name(BLOCK.query, 1)}/" in path for path in paths(store))
    assert sorted(row[0] for row in read_table(spark, url, options).collect()) == [0, 1, 2]


def test_a_table_is_read_in_as_many_tasks_as_it_has_groups_of_files(spark: Any, store: ObjectStore) -> None:
    table = table_in(store, file_bytes=1)
    assert table.stage(spark.range(0, 25_000, 1, 2), BLOCK).commit()
    files = [path for path in paths(store) if path.endswith(".parquet")]
    assert len(files) == 4  # a file for each Arrow batch of 10,000 rows
    back = table.read(spark)
    assert back.rdd.getNumPartitions() == 4
    assert back.selectExpr("sum(id)", "count(*)").collect()[0] == (25_000 * 24_999 // 2, 25_000)


@pytest.mark.parametrize("damage", ["gone", "short", "noise"])
def test_a_committed_file_that_is_gone_or_damaged_is_named(
    spark: Any, store: ObjectStore, url: str, options: dict[str, str], damage: str
) -> None:
    table = open_table(spark, url, options=options)
    assert table.stage(spark.range(0, 3, 1, 1), BLOCK).commit()
    path = next(path for path in paths(store) if path.endswith(".parquet"))
    size = store.head(path).size
    harm: dict[str, Callable[[], object]] = {
        "gone": lambda: store.delete([path]),
        "short": lambda: store.put(path, b"x"),
        "noise": lambda: store.put(path, b"x" * size),
    }
    harm[damage]()
    problems = {
        "gone": "is gone",
        "short": f"has 1 bytes, and the commit of its block says {size}",
        "noise": "cannot be read",
    }
    with pytest.raises(Exception, match="CorruptData") as caught:
        read_table(spark, url, options).collect()
    assert path in str(caught.value)
    assert problems[damage] in str(caught.value)


def test_no_credential_is_shown(
    spark: Any, s3_server: S3Server, url: str, options: dict[str, str], capsys: Any
) -> None:
    table = open_table(spark, url, options=options)
    staged = table.stage(spark.range(1), BLOCK)
    assert staged.commit()
    back = read_table(spark, url, options)
    back.explain(True)
    bucket = f"removed-{BUCKET}"
    s3_server.create_bucket(bucket)
    removed = table_in(open_store(f"s3://{bucket}/x", **options))
    removed.check(spark.range(1).schema)
    s3_server.delete_bucket(bucket)
    with pytest.raises(Exception, match="NoSuchBucket") as caught:  # from an executor: the driver has looked before
        removed.stage(spark.range(1), BLOCK)
    shown = [repr(table), repr(staged), table.url, capsys.readouterr().out, str(caught.value), repr(back)]
    assert "MapInArrow" in shown[3]
    for text in shown:
        assert options["secret_access_key"] not in text
        assert options["access_key_id"] not in text


def test_files_lie_where_plain_readers_look_for_their_partition(
    spark: Any, store: ObjectStore, url: str, options: dict[str, str]
) -> None:
    df = spark.createDataFrame([(1, "a/b"), (2, None)], "id bigint, event string")
    assert open_table(spark, url, partition_by=["event"], options=options).stage(df, BLOCK).commit()
    files = [path for path in paths(store) if path.endswith(".parquet")]
    assert {path.split("/")[1] for path in files} == {"event=a%2Fb", "event=__HIVE_DEFAULT_PARTITION__"}
    content = [pq.read_table(pa.BufferReader(store.get(path).data)).to_pydict() for path in files]
    assert sorted(content, key=str) == [{"id": [1]}, {"id": [2]}]
