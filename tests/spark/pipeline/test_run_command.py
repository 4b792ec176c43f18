"""`penstock run pipeline.toml`, as typed at a shell: one real run of a file with everything in it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run_for
from tests.support.pipeline_places import Places
from tests.support.spark_session import skip_without_java

PIPELINE = """\
source = "{root}/events"
checkpoint = "{root}/checkpoint"
dead_letters = "{root}/dead-letters"
trigger = "available_now"

[options]
maxBatchesPerTrigger = 1

[parse]
format = "json"
schema = "id bigint, event string"

[[process]]
function = "my_steps:trimmed"
before_parse = true

[[process]]
function = "my_steps:with_length"
schema = "id bigint, event string, length int"

[sink]
parquet = "{root}/table"
partition_by = ["event"]

[spark]
master = "local[2]"

[spark.config]
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""
STEPS = """\
import pyarrow as pa
import pyarrow.compute as pc

from penstock import Record


def trimmed(batch):
    return batch.map_records(lambda records: [Record(one.value.strip(b"!"), one.key, one.headers) for one in records])


def with_length(batch):
    length = pc.utf8_length(batch.column("event"))
    errors = pc.if_else(pc.equal(length, 0), "the event has no name", pa.scalar(None, pa.string()))
    return batch.append_column("length", length).append_column("_error", errors)
"""


pytestmark = pytest.mark.slow  # `penstock demo`, which has a test of its own, runs the command too


@dataclass(frozen=True)
class Done:
    places: Places
    result: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    skip_without_java()
    places = Places(tmp_path_factory.mktemp("run"))
    places.put([b'!{"id": 1, "event": "click"}', b"no JSON"], [b'{"id": 2, "event": ""}', b'{"id": 3, "event": "key"}'])
    (places.root / "my_steps.py").write_text(STEPS)
    (places.root / "pipeline.toml").write_text(PIPELINE.format(root=places.root))
    return Done(places, run_for(280, "run", str(places.root / "pipeline.toml")))


def test_it_ends_well_with_one_line_that_says_what_was_done(done: Done) -> None:
    assert done.result.returncode == 0, done.result.stderr
    lines = done.result.stdout.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("2 rows, ")
    assert " bytes, 2 dead letters, 2 blocks, " in lines[0]


def test_rows_and_dead_letters_went_through_the_functions_beside_the_file_and_are_acked(done: Done) -> None:
    assert done.places.rows() == [{"id": 1, "length": 5, "event": "click"}, {"id": 3, "length": 3, "event": "key"}]
    letters = [(letter["payload"], letter["stage"]) for letter in done.places.letters()]
    assert letters == [(b"no JSON", "parse"), (b'{"id": 2, "event": ""}', "process")]
    assert done.places.queued() == []


@pytest.mark.skipif(importlib.util.find_spec("grpc") is not None, reason="Spark Connect is installed")
def test_a_master_of_spark_connect_without_its_packages_is_refused_in_one_line(tmp_path: Path) -> None:
    skip_without_java()
    (tmp_path / "my_steps.py").write_text(STEPS)
    text = PIPELINE.format(root=tmp_path).replace("local[2]", "sc://localhost:1")
    (tmp_path / "pipeline.toml").write_text(text)

    command = Path(sys.executable).with_name("penstock")  # with `python -c` Spark takes itself for a doctest, and ends
    result = subprocess.run(
        [command, "run", tmp_path / "pipeline.toml"], capture_output=True, text=True, check=False, timeout=120
    )

    assert result.returncode == 1
    assert "is a server of Spark Connect, which needs more: pip install 'pyspark[connect]'" in result.stderr
    assert "Traceback" not in result.stderr


SMALL = """\
source = "{root}/events"
trigger = "available_now"

[parse]
format = "json"
schema = "id bigint, event string"

{sink}

[spark]
master = "local[2]"

[spark.config]
"spark.ui.enabled" = false
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_file_with_another_kind_of_table_writes_one_that_its_own_library_reads(kind: str, tmp_path: Path) -> None:
    skip_without_java()
    pytest.importorskip("deltalake" if kind == "delta" else "pyiceberg")
    places = Places(tmp_path)
    events = [{"id": 1, "event": "click"}, {"id": 2, "event": "key"}]
    places.put(*([json.dumps(event).encode()] for event in events))
    warehouse = tmp_path / "warehouse"
    sink = f'[sink]\ndelta = "{places.table}"'
    if kind == "iceberg":
        sink = f'[sink]\niceberg = "local.db.events"\n\n[sink.catalog]\nwarehouse = "{warehouse}"'
    (tmp_path / "pipeline.toml").write_text(SMALL.format(root=tmp_path, sink=sink))
    done = run_for(280, "run", str(tmp_path / "pipeline.toml"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 rows, ")
    assert sorted(_rows_of(kind, places), key=lambda row: int(row["id"])) == events
    assert places.queued() == []


def _rows_of(kind: str, places: Places) -> list[dict[str, Any]]:
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(places.table).to_pyarrow_table().to_pylist()
    from pyiceberg.catalog.sql import SqlCatalog

    [database] = (places.root / "warehouse").glob("*.db")
    catalog = SqlCatalog("local", uri=f"sqlite:///{database}", warehouse=str(places.root / "warehouse"))
    rows: list[dict[str, Any]] = catalog.load_table("db.events").scan().to_arrow().to_pylist()
    return rows
