"""Pipelines through Spark Connect: a real server, and what is in the tables afterwards, read without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import peek
from penstock.storage import open_store
from tests.support.connect_jobs import run_connect_job
from tests.support.pipeline_places import Places

pytestmark = pytest.mark.timeout(600)  # one fixture runs all that the tests look at

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 2, "name": "c"}]
DONE = {"rows": 3, "dead_letters": 1, "blocks": 1}


@dataclass(frozen=True)
class Found:
    """What the job said, and where its tables are."""

    said: dict[str, Any]
    directory: Path

    def places(self, name: str) -> Places:
        return Places(self.directory / name)

    def error(self, name: str) -> tuple[str, str]:
        kind, text = self.said["errors"][name]
        return kind, text


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("connect")
    return Found(run_connect_job("tests.spark.pipeline.connect_job", directory), directory)


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["id"], row["name"]))


def payloads(letters: list[dict[str, Any]]) -> list[bytes]:
    return [letter["payload"] for letter in letters]


def test_rows_and_dead_letters_go_to_parquet(found: Found) -> None:
    places = found.places("parquet")
    assert found.said["parquet"] == DONE
    assert by_id(places.rows()) == ROWS
    assert payloads(places.letters()) == [b"no JSON"]
    assert found.said["parquet-read"] == [list(row.values()) for row in ROWS]
    assert places.queued() == []


def test_rows_go_to_delta_and_replace_those_of_their_key(found: Found) -> None:
    deltalake = pytest.importorskip("deltalake")
    places = found.places("delta")
    rows = deltalake.DeltaTable(str(places.table)).to_pyarrow_table().to_pylist()
    assert found.said["delta"] == DONE
    assert by_id(rows) == [ROWS[0], ROWS[2]]
    assert found.said["delta-read"] == [list(row.values()) for row in by_id(rows)]
    assert payloads(places.letters()) == [b"no JSON"]
    assert places.queued() == []


def test_rows_and_dead_letters_go_to_iceberg(found: Found) -> None:
    places = found.places("iceberg")
    load_catalog = pytest.importorskip("pyiceberg.catalog").load_catalog
    catalog = load_catalog("local", type="sql", uri=f"sqlite:///{places.table}/catalog.db", warehouse=str(places.table))
    rows, letters = (catalog.load_table(f"db.{name}").scan().to_arrow().to_pylist() for name in ("rows", "letters"))
    assert found.said["iceberg"] == DONE
    assert by_id(rows) == ROWS
    assert payloads(letters) == [b"no JSON"]
    assert found.said["iceberg-read"] == [list(row.values()) for row in ROWS]
    assert places.queued() == []


def test_rows_go_to_a_buffer(found: Found) -> None:
    places = found.places("buffer")
    copied = [record.value for record in peek(open_store(str(places.root / "copy")), 10)]
    assert found.said["buffer"] == DONE
    assert copied == [b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}', b'{"id":2,"name":"c"}']


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_transform_makes_other_rows(found: Found, kind: str) -> None:
    places = found.places(f"transform-{kind}")
    rows = places.rows()
    if kind == "delta":
        rows = pytest.importorskip("deltalake").DeltaTable(str(places.table)).to_pyarrow_table().to_pylist()
    assert found.said[f"transform-{kind}"] == {"rows": 2, "dead_letters": 1, "blocks": 1}
    assert by_id(rows) == [{**row, "size": 1} for row in ROWS[1:]]
    assert payloads(places.letters()) == [b"no JSON"]


def test_duplicates_are_left_out_across_blocks(found: Found) -> None:
    places = found.places("deduplicate")
    first, second = found.said["deduplicate"]
    assert (first["rows"], second["rows"]) == (2, 1)
    assert by_id(places.rows()) == [*ROWS[:2], {"id": 3, "name": "d"}]
    assert payloads(places.letters()) == [b"no JSON"]


def test_a_function_gets_each_block(found: Found) -> None:
    assert found.said["function"] == DONE
    assert found.said["function-rows"] == [list(row.values()) for row in ROWS]


def test_the_command_runs_a_file_there(found: Found) -> None:
    printed, logged = found.said["command"]
    assert printed.startswith("3 rows, "), logged
    assert by_id(found.places("command").rows()) == ROWS


def test_columns_are_inferred(found: Found) -> None:
    assert found.said["infer"]["rows"] == 3
    assert by_id(found.places("infer").rows()) == ROWS


def test_a_transform_that_drops_duplicates_is_warned_of(found: Found) -> None:
    assert found.said["warnings"] == 1


@pytest.mark.parametrize("name", ["hadoop", "hadoop-checkpoint"])
def test_a_file_system_of_hadoops_is_refused_in_one_line(found: Found, name: str) -> None:
    assert found.error(name) == (
        "InvalidInput",
        "hdfs://localhost:1/table is reached by Spark's Hadoop only, and not through Spark Connect: use a path, s3://, "
        "gs:// or az://, or a classic session",
    )


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("no-column", "ProcessFailed", "a transform failed: AnalysisException: [UNRESOLVED_COLUMN"),
        ("rdd", "ProcessFailed", "a transform failed: PySparkNotImplementedError: [NOT_IMPLEMENTED] rdd is not"),
        ("no-frame", "ProcessFailed", "a transform must return a DataFrame, and returned int"),
        ("process", "ProcessFailed", "failing failed on records 0 to "),
        ("sink", "SinkFailed", "failed: AnalysisException: [UNRESOLVED_COLUMN"),
        ("unrouted", "DeadLettersUnrouted", "1 dead letters, and no place for them"),
        ("option", "InvalidInput", "unknown option 'maxbytespertriger': is 'maxBytesPerTrigger' meant"),
    ],
)
def test_an_error_is_ours_without_a_trace_of_java(found: Found, name: str, kind: str, text: str) -> None:
    raised, said = found.error(name)
    assert (raised, text in said) == (kind, True), said
    assert "org.apache.spark" not in said


def test_a_run_that_failed_acks_nothing(found: Found) -> None:
    assert found.said["errors"]["queued"] == [0, 1]


def test_a_second_signal_ends_the_job_and_its_block_comes_again(found: Found) -> None:
    stopped = found.said["stopped"]
    assert stopped["task-ended"]
    assert (stopped["run"]["rows"], stopped["queued"]) == (0, [0, 1])
    assert stopped["next"]["rows"] == 3
    assert by_id(found.places("stopped").rows()) == ROWS
