"""A program that ends without a `close` flushes all the same; a forked child does not flush its parent's producer."""

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

MANIFESTS = ["native"]

PLAIN = """
import sys
from penstock import Producer, ProducerConfig
Producer(sys.argv[1], ProducerConfig(flush_interval=3600)).produce(b"one")
sys.exit("multiprocessing.util" in sys.modules)
"""


def run(way: str, url: str, **environment: str) -> tuple[int, str]:
    """Run the program; return its status and its output (newer Pythons warn of every fork)."""
    program = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            "tests.buffer.producer.unclosed_program",
            way,
            url,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        output, _ = program.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # it, and the children that it waits for
        program.communicate()
        raise
    return program.returncode, output


def test_events_are_flushed_at_the_end_of_a_program(tmp_path: Path) -> None:
    assert run("at the end", str(tmp_path)) == (0, "")
    assert sorted(entries(open_store(tmp_path))) == [b"0", b"1", b"2", b"3", b"4", b"one", b"two"]


def test_events_are_flushed_at_the_end_of_a_program_without_multiprocessing(tmp_path: Path) -> None:
    """Where `multiprocessing` is loaded, its exit handlers would close the producer too."""
    done = subprocess.run([sys.executable, "-c", PLAIN, str(tmp_path)], timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert entries(open_store(tmp_path)) == [b"one"]


def test_events_are_flushed_at_the_end_of_a_program_on_s3(s3_server: S3Server, fresh_name: str) -> None:
    url = f"s3://{BUCKET}/{fresh_name}"
    environment = {f"AWS_{name.upper()}": str(value) for name, value in s3_server.options.items()}
    assert run("at the end", url, **environment) == (0, "")
    assert len(entries(open_store(url, **s3_server.options))) == 7


def test_events_are_flushed_by_sys_exit(tmp_path: Path) -> None:
    assert run("by sys.exit", str(tmp_path)) == (3, "")
    assert entries(open_store(tmp_path)) == [b"one"]


def test_events_are_flushed_by_an_uncaught_error(tmp_path: Path) -> None:
    status, output = run("by an error", str(tmp_path))
    assert (status, output.splitlines()[-1]) == (1, "LookupError: not caught")
    assert entries(open_store(tmp_path)) == [b"one"]


def test_a_closed_producer_is_not_flushed_again(tmp_path: Path) -> None:
    assert run("after a close", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"one"]


@pytest.mark.parametrize("kind", ["forked", "spawned"])
def test_the_events_of_a_child_are_flushed_when_it_ends(tmp_path: Path, kind: str) -> None:
    assert run(f"from a {kind} child", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forked", "spawned"])
def test_a_child_and_its_parent_flush_each_their_own(tmp_path: Path, kind: str) -> None:
    assert run(f"from a {kind} child and its parent", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child", b"parent"]


@pytest.mark.parametrize(
    "way",
    [pytest.param("with an idle child", marks=pytest.mark.slow), "with a fork", "with a fork while locked"],
)
def test_a_forked_child_ends_without_output_and_its_parents_events_are_flushed_once(tmp_path: Path, way: str) -> None:
    assert run(way, str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"parent"]


@pytest.mark.slow
def test_a_plain_fork_and_its_parent_flush_each_their_own(tmp_path: Path) -> None:
    assert run("with a fork that produces", str(tmp_path)) == (0, "")
    assert entries(open_store(tmp_path)) == [b"child", b"parent"]
