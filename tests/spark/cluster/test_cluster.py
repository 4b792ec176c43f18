"""Pipelines on a real cluster: a standalone master and two workers, with the commands of the guide as printed.

The Python of the hosts has no Penstock. It comes as the page says, or not at all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset
import pytest

from penstock import Producer
from penstock.buffer import Manifest
from penstock.storage import open_store
from tests.support.process_sessions import Session
from tests.support.spark_session import skip_without_java
from tests.support.waiting import until

pytest.importorskip("pyspark")

from tests.spark.cluster import killed_job
from tests.spark.cluster.killed_job import BATCHES, BLOCK, RECORDS
from tests.spark.cluster.standalone import Cluster
from tests.spark.kills import kinds
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "guides" / "cluster.md").read_text()
A_JOB = 240.0  # seconds until a job counts as stuck; it takes a tenth of it

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]  # `kills` has a quicker kill


def block_under(title: str, language: str) -> str:
    """The first block of code in that language below a title of the page."""
    _, _, below = PAGE.partition(f"# {title}\n")
    found = re.search(rf"^```{language}\n(.*?)^```", below, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


MAKE_PACKAGE = block_under("The package", "sh")
JOB = block_under("A job", "py")
SUBMIT = block_under("Standalone", "sh")
SERVICE = block_under("As a service", "sh")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_java()
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.clear_away()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `pkg.zip`, built as the page says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-euc", MAKE_PACKAGE], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    return tmp_path


def submit(cluster: Cluster, folder: Path, command: str = SUBMIT) -> Session:
    cluster.bring_workers_to(2)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    places = {
        "MASTER": cluster.url,
        "PYSPARK_PYTHON": str(cluster.python),
        "DATA": str(folder),
        "CHECKPOINT": str(folder / "checkpoint"),
    }
    return cluster.submit(command, folder, PATH=path, **places)


def entries_left(folder: Path) -> int:
    return len(Manifest.read(open_store(folder / "events")).entries)


def rows_of(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    """What any reader of Parquet sees in a table, in order."""
    table = pyarrow.dataset.dataset(folder, format="parquet").to_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True), key=repr)


@dataclass(frozen=True)
class Expected:
    """What `killed_job` has to make of what was produced, in order."""

    rows: list[tuple[object, ...]]
    letters: list[tuple[object, ...]]


def produced(buffer: Path) -> Expected:
    """Fill a buffer: in every batch a payload is no JSON, and each tenth event will be refused."""
    rows: list[tuple[object, ...]] = []
    letters: list[tuple[object, ...]] = []
    with Producer(buffer) as producer:
        for sequence in range(BATCHES):
            payloads = list[str]()
            for index in range(RECORDS):
                number = sequence * RECORDS + index
                event = f"event {number % 7}"
                payloads.append(json.dumps({"id": number, "event": event}) if index != 7 else f"{number} is no JSON")
                if index == 7:
                    letters.append((payloads[-1].encode(), "parse", sequence, index))
                elif number % 10 == 3:
                    letters.append((payloads[-1].encode(), "process", None, None))
                else:
                    rows.append((number, event, f"{event}-at home"))
            producer.produce(payloads)
            producer.flush()
    return Expected(sorted(rows, key=repr), sorted(letters, key=repr))


@pytest.mark.chaos
@pytest.mark.parametrize("command", [pytest.param(SUBMIT, id="submitted"), pytest.param(SERVICE, id="as-a-service")])
def test_the_commands_and_the_job_of_the_page_work_as_printed(command: str, cluster: Cluster, folder: Path) -> None:
    with Producer(folder / "events") as producer:
        producer.produce_json([{"id": number, "event": "click"} for number in range(1000)])
        producer.produce("this is no JSON")
    (folder / "job.py").write_text(JOB)
    driver = submit(cluster, folder, command)
    assert driver.status(A_JOB) == 0, driver.output
    expected = [(number, "click", "click") for number in range(1000)]
    assert rows_of(folder / "table", "id", "event", "where") == sorted(expected, key=repr)
    assert rows_of(folder / "dead-letters", "payload", "stage") == [(b"this is no JSON", "parse")]
    assert entries_left(folder) == 0


@pytest.mark.chaos
def test_without_the_archive_the_executors_lack_the_module(cluster: Cluster, folder: Path) -> None:
    with Producer(folder / "events") as producer:
        producer.produce_json({"id": 1, "event": "click"})
    (folder / "job.py").write_text(JOB)
    without = SUBMIT.replace("--archives pkg.zip#pkg --conf spark.executorEnv.PYTHONPATH=./pkg", "")
    assert without != SUBMIT
    driver = submit(cluster, folder, without)
    assert driver.status(A_JOB) != 0
    assert "ModuleNotFoundError: No module named 'penstock'" in driver.output, driver.output
    assert not (folder / "table").exists()
    assert entries_left(folder) == 1


@pytest.mark.parametrize("held_while", ["reading", pytest.param("writing", marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", kinds.TABLES)
def test_a_worker_is_killed_in_a_block_and_every_event_is_there_once(
    kind: str, held_while: str, cluster: Cluster, folder: Path
) -> None:
    expected = produced(folder / "events")
    (folder / "job.py").write_text(Path(killed_job.__file__).read_text())
    (folder / "hold").write_text(held_while)
    (folder / "kind").write_text(kind)
    driver = submit(cluster, folder)

    def marked() -> int | None:
        assert not driver.has_ended(), driver.output
        mark = folder / killed_job.MARK
        return int(mark.read_text()) if mark.exists() else None

    session = until(marked, "the chosen record", A_JOB)
    killed = next(worker for worker in cluster.workers if worker.id == session)
    blocks_before = kinds.count_blocks(kind, folder / "table")
    others = {worker.id for worker in cluster.workers} - {killed.id}
    count = killed.kill()
    assert driver.status(A_JOB) == 0, driver.output
    print(driver.output)

    assert count >= 4, "the worker, its executor, and the executor's Python processes"
    assert blocks_before == 1, "it was in the middle of block 1"
    assert int((folder / killed_job.AGAIN).read_text()) in others, "it was computed again elsewhere"
    assert kinds.count_blocks(kind, folder / "table") == BATCHES // BLOCK
    for reader, rows in kinds.read_columns(kind, folder / "table", ["id", "event", "place"]).items():
        assert sorted(rows, key=repr) == expected.rows, reader
    columns = ["payload", "stage", "sequence", "index"]
    for reader, letters in kinds.read_columns(kind, folder / "letters", columns).items():
        assert sorted(letters, key=repr) == expected.letters, reader
    assert entries_left(folder) == 0
