"""Whoever leaves without a `close` has flushed all the same; a forked child leaves its parent's producer alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.processes import PATIENCE
from tests.support.repository import ROOT
from tests.support.servers import BUCKET, S3Server

MANIFESTS = ["native", pytest.param("opendata", marks=pytest.mark.chaos)]

PLAIN = """
import sys
from penstock import Producer, ProducerConfig
Producer(sys.argv[1], ProducerConfig(flush_interval=3600)).produce(b"one")
sys.exit("multiprocessing.util" in sys.modules)
"""


def leave(way: str, place: str, **environment: str) -> tuple[int, str]:
    """Run the program that leaves; return its status, and all that it said (newer Pythons warn of every fork)."""
    program = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.buffer.producer.unclosed_program",
            way,
            place,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        said, _ = program.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # it, and the children that it waits for
        program.communicate()
        raise
    return program.returncode, said


def test_what_was_taken_is_flushed_at_the_end_of_a_program(tmp_path: Path) -> None:
    assert leave("at the end", str(tmp_path)) == (0, "")
    assert sorted(entries(open_store(tmp_path))) == [b"0", b"1", b"2", b"3", b"4", b"one", b"two"]


def test_what_was_taken_is_flushed_at_the_end_of_a_program_that_knows_of_no_other_process(tmp_path: Path) -> None:
    """Where `multiprocessing` is loaded it would be closed by that, too."""
    done = subprocess.run([sys.executable, "-c", PLAIN, str(tmp_path)], timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert entries(open_store(tmp_path)) == [b"one"]


def test_what_was_taken_is_flushed_at_the_end_of_a_program_on_s3(s3_server: S3Server, fresh_name: str) -> None:
    place = f"s3://{BUCKET}/{fresh_name}"
    environment = {f"AWS_{name.upper()}": str(value) for name, value in s3_server.options.items()}
    assert leave("at the end", place, **environment) == (0, "")
    assert len(entries(open_store(place, **s3_server.options))) == 7


def test_what_was_taken_is_flushed_by_sys_exit(tmp_path: Path) -> None:
    assert leave("by sys.exit", str(tmp_path)) == (3, "")
    assert entries(open_store(tmp_path)) == [b"one"]


def test_what_was_taken_is_flushed_by_an_error_that_nobody_catches(tmp_path: Path) -> None:
    status, said = leave("by an error", str(tmp_path))
    assert (status, said.splitlines()[-1]) == (1, "LookupError: nobody catches this")
    assert entries(open_store(tmp_path)) == [b"one"]


def test_what_is_closed_is_not_flushed_again(tmp_path: Path) -> None:
    assert leave("after a close", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"one"]


@pytest.mark.parametrize("kind", ["forked", "spawned"])
def test_what_a_child_has_taken_is_flushed_when_the_child_ends(tmp_path: Path, kind: str) -> None:
    assert leave(f"from a {kind} child", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child"]


@pytest.mark.parametrize("kind", ["forked", "spawned"])
def test_a_child_and_its_parent_flush_each_their_own(tmp_path: Path, kind: str) -> None:
    assert leave(f"from a {kind} child and its parent", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child", b"parent"]


@pytest.mark.parametrize("way", ["with an idle child", "with a fork", "with a fork while locked"])
def test_a_forked_child_leaves_quietly_and_what_its_parent_has_taken_is_flushed_once(tmp_path: Path, way: str) -> None:
    assert leave(way, str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"parent"]


def test_a_plain_fork_and_its_parent_flush_each_their_own(tmp_path: Path) -> None:
    assert leave("with a fork that produces", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child", b"parent"]
