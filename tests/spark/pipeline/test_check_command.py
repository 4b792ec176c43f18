"""`penstock run --check`: what is wrong with a pipeline, in seconds, and nothing is created."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import Producer, ProducerConfig
from tests.support.command import MAIN, Answer, run_for

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from penstock.errors import InvalidInput
from penstock.spark.pipeline.ddl import columns_in
from penstock.spark.tables.parquet.table import open_table
from tests.support.plain_tables import put_block
from tests.support.spark_session import skip_without_java

PIPELINE = """\
source = "{root}/events"
checkpoint = "{root}/checkpoint"
dead_letters = "{root}/letters"
trigger = "available_now"

[options]
group = "{group}"

[parse]
format = "json"
schema = "{schema}"

[[process]]
function = "check_steps:same"

[sink]
parquet = "{root}/table"
partition_by = ["event"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    skip_without_java()
    with Producer(tmp_path / "events", ProducerConfig(manifest_format="native")) as producer:
        producer.produce(b"{}").result()
    (tmp_path / "check_steps.py").write_text("def same(batch):\n    return batch\n")
    return tmp_path


def checked(root: Path, *, schema: str = "id bigint, event string", group: str = "default") -> Answer:
    (root / "pipeline.toml").write_text(PIPELINE.format(root=root, schema=schema, group=group))
    done = run_for(60, "run", "--check", str(root / "pipeline.toml"))
    return Answer(done.returncode, done.stdout.encode(), done.stderr)


def below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if "__pycache__" not in str(path) and path.name != "pipeline.toml")


def test_a_pipeline_that_would_run_is_described_and_nothing_is_created(root: Path) -> None:
    before = below(root)
    began = time.monotonic()
    shown = checked(root)
    assert time.monotonic() - began < 30  # alone it is two seconds
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0].startswith("ok           Java ")
    assert "PySpark " in lines[0]
    assert lines[1].endswith("pipeline.toml: parse json, check_steps:same on columns; trigger available_now")
    assert lines[2].endswith(f"source {root}/events, group 'default': 1 batches, 1 events wait")
    assert lines[3].endswith(f"table file://{root}/table (parquet) is not there yet: the first block creates it")
    assert "dead letters, parquet" in lines[4]
    assert lines[5] == "it would run"
    assert below(root) == before


def test_a_group_that_is_not_there_is_named_and_not_created(root: Path) -> None:
    before = below(root)
    shown = checked(root, group="new")
    assert shown.status == 0
    assert "has no group 'new' yet (default): the run creates it, at earliest" in shown.out
    assert below(root) == before


def test_a_table_that_is_there_must_take_the_columns(root: Path) -> None:
    table = open_table(None, str(root / "table"), partition_by=["event"])
    schema = StructType().add("id", IntegerType()).add("event", StringType())
    put_block(table, [{"id": 1, "event": "a"}], 0, schema=schema)
    shown = checked(root)
    assert shown.status == 1
    assert "WRONG        the sink: the column 'id' is int in the table" in shown.out
    assert shown.out.endswith("1 problem: it would not run\n")
    fitting = checked(root, schema="id int, event string, more double")
    assert fitting.status == 0
    assert "(parquet): 1 rows, 1 files; its columns fit; it has nothing of this group yet" in fitting.out


def test_a_source_that_is_not_there_and_a_schema_that_cannot_be_are_found_together(root: Path) -> None:
    (root / "events").rename(root / "elsewhere")
    shown = checked(root, schema="id bigin, event string")
    assert shown.status == 1
    assert f"WRONG        there is no buffer at {root}/events" in shown.out
    assert "'bigin' is no type; did you mean bigint?" in shown.out
    assert not (root / "events").exists()


def test_types_that_only_spark_knows_are_left_to_it(root: Path) -> None:
    shown = checked(root, schema="id bigint, event string, doc variant")
    assert shown.status == 0
    assert "not checked  the schema has types or clauses that only Spark can read" in shown.out


def test_a_mistake_in_the_file_is_one_line(root: Path) -> None:
    (root / "check_steps.py").unlink()
    shown = checked(root)
    assert shown.is_error("")
    assert 'process.function "check_steps:same" cannot be imported: ModuleNotFoundError' in shown.err


def test_java_that_is_missing_is_found(root: Path) -> None:
    (root / "pipeline.toml").write_text(PIPELINE.format(root=root, schema="id bigint, event string", group="default"))
    done = run_for(60, "run", "--check", str(root / "pipeline.toml"), JAVA_HOME=str(root / "no-java"))
    assert done.returncode == 1
    assert done.stdout.startswith("WRONG        Java was not found in JAVA_HOME")
    assert "ok           source " not in done.stderr


def test_at_a_terminal_it_says_from_the_first_second_what_it_does(root: Path) -> None:
    (root / "pipeline.toml").write_text(PIPELINE.format(root=root, schema="id bigint, event string", group="default"))
    (root / "check_steps.py").write_text("import time\n\ntime.sleep(3.5)\n\ndef same(batch):\n    return batch\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", MAIN, "run", "--check", str(root / "pipeline.toml")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False, timeout=60)
    os.close(theirs)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    assert done.returncode == 0
    assert lines[0] == f"reading {root}/pipeline.toml (1 s)"
    assert lines[1] == f"reading {root}/pipeline.toml (3 s)"


# Schemas without a JVM


@pytest.mark.parametrize(
    ("ddl", "shown"),
    [
        ("id bigint", "struct<id:bigint>"),
        ("a INT NOT NULL COMMENT 'first', `b c` string", "struct<a:int,b c:string>"),
        ("a: array<map<string, decimal(10, 2)>>", "struct<a:array<map<string,decimal(10,2)>>>"),
        ("s struct<x: int, y: struct<z: timestamp_ntz>>", "struct<s:struct<x:int,y:struct<z:timestamp_ntz>>>"),
        ("d decimal, e numeric(5)", "struct<d:decimal(10,0),e:decimal(5,0)>"),
    ],
)
def test_a_schema_is_read_as_spark_reads_it(ddl: str, shown: str) -> None:
    columns = columns_in(ddl)
    assert columns is not None
    assert columns.simpleString() == shown


def test_not_null_is_kept() -> None:
    assert columns_in("id bigint not null") == StructType().add("id", LongType(), False)


@pytest.mark.parametrize(
    "ddl", ["", "id", "id bigint,", "a int b int", "a array<int", "a decimal(39)", "a struct", "?"]
)
def test_a_schema_that_cannot_be_is_refused(ddl: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        columns_in(ddl)


@pytest.mark.parametrize("ddl", ["v variant", "c char(3)", "s string collate UTF8_LCASE", "t time(6)"])
def test_of_what_only_spark_reads_nothing_is_said(ddl: str) -> None:
    assert columns_in(ddl) is None
