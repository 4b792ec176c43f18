"""The command: its demo, its version, its errors."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import penstock
from penstock import DurableEventQueue
from penstock.buffer import Manifest
from penstock.cli.demo import Pushed, make_place
from penstock.errors import PenstockError
from penstock.queue import queues_in
from tests.support.command import Here, run_for
from tests.support.spark_session import skip_without_java

PUSHED = Pushed("", services=2, events=500)


@dataclass(frozen=True)
class Demo:
    root: Path
    result: subprocess.CompletedProcess[str]

    @property
    def numbers(self) -> dict[str, int]:
        """The rows of the demo's table, by their words."""
        rows = re.findall(r"│ (.*?) +│ +([\d,]+) │", self.result.stdout)
        return {words: int(number.replace(",", "")) for words, number in rows}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    skip_without_java()
    root = tmp_path_factory.mktemp("demo") / "not" / "there"
    words = ("demo", str(root), "--events", str(PUSHED.events), "--producers", str(PUSHED.services), "--kills", "1")
    return Demo(root, run_for(290, *words))


@pytest.mark.slow
def test_the_demo_ends_well_although_its_driver_was_killed(demo: Demo) -> None:
    assert demo.result.returncode == 0, demo.result.stdout + demo.result.stderr
    assert "killed the pipeline's driver with SIGKILL (1 of 1)" in demo.result.stdout


@pytest.mark.slow
def test_the_demo_loses_nothing_and_has_nothing_twice(demo: Demo) -> None:
    assert (demo.numbers["lost"], demo.numbers["twice"]) == (0, 0)


@pytest.mark.slow
def test_every_event_of_the_demo_is_a_row_or_a_dead_letter(demo: Demo) -> None:
    numbers = demo.numbers
    assert (numbers["events pushed"], numbers["dead letters"]) == (PUSHED.total, PUSHED.dead)
    assert numbers["rows in the table"] == PUSHED.total - PUSHED.dead


@pytest.mark.slow
@pytest.mark.parametrize(("table", "rows"), [("table", PUSHED.total - PUSHED.dead), ("dead-letters", PUSHED.dead)])
def test_the_tables_of_the_demo_have_what_it_says_for_any_reader(demo: Demo, table: str, rows: int) -> None:
    assert ds.dataset(demo.root / table, format="parquet", partitioning="hive").count_rows() == rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queues", "buffer", "table", "dead-letters", "pipeline.toml", "driver.log"])
def test_what_the_demo_names_is_there(demo: Demo, name: str) -> None:
    assert str(demo.root / name) in demo.result.stdout
    assert (demo.root / name).exists()


@pytest.mark.slow
def test_the_demo_leaves_its_queues_empty_and_its_buffer_acked(demo: Demo) -> None:
    assert Manifest.read(demo.root / "buffer").entries == ()
    places = list(queues_in(demo.root / "queues"))
    assert len(places) == PUSHED.services
    for place in places:
        with DurableEventQueue(place) as queue:
            assert queue.is_empty


def test_a_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    assert make_place(tmp_path / "not" / "there") == tmp_path / "not" / "there"
    assert (tmp_path / "not" / "there").is_dir()
    assert make_place(tmp_path / "not" / "there").is_dir()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PenstockError, match=f"{tmp_path}/file"):
        make_place(tmp_path / "file" / "below")


def test_without_java_the_demo_says_how_to_get_it_and_starts_nothing(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere, root = tmp_path / "nowhere", tmp_path / "demo"
    monkeypatch.setenv("JAVA_HOME", str(nowhere))
    monkeypatch.setenv("PATH", str(nowhere))
    done = here("demo", str(root))
    assert done.status == 1
    assert done.err.startswith(f"penstock: Java was not found in JAVA_HOME ({nowhere}), and Spark needs 17 or newer.")
    assert "apt-get install openjdk-17-jre-headless" in done.err
    assert not root.exists()


def test_without_a_java_home_java_is_looked_for_on_the_path(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = here("demo", str(tmp_path))
    assert done.status == 1
    assert done.err.startswith("penstock: Java was not found on the PATH, and Spark needs 17 or newer.")


def test_a_java_that_is_too_old_is_named(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = here("demo", str(tmp_path / "demo"))
    assert done.status == 1
    assert f"Java 11 ({java}) is too old for Spark" in done.err


def test_the_version_is_the_packages(here: Here) -> None:
    assert here("--version").out.strip() == f"penstock {penstock.__version__}"


@pytest.mark.parametrize("words", [("nonsense",), ("demo", "--producers", "0"), ("manifest", "nonsense")])
def test_a_mistake_is_reported_and_ends_with_status_2(words: tuple[str, ...], here: Here) -> None:
    done = here(*words)
    assert done.status == 2
    assert "Traceback" not in done.err


def test_an_error_of_ours_is_one_line_and_no_traceback(tmp_path: Path, here: Here) -> None:
    (tmp_path / "file").write_text("")
    done = here("demo", str(tmp_path / "file"))
    assert done.status == 1
    assert done.err.strip() == f"penstock: {tmp_path / 'file'} is a file, and a store needs a directory"
