"""SIGTERM and Ctrl-C while a pipeline runs: a driver process of its own, and real signals."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipeline.run import Stopping
from tests.spark.pipeline.stopping_driver import HELD, RELEASED
from tests.support.pipeline_places import Places
from tests.support.processes import PATIENCE
from tests.support.repository import ROOT
from tests.support.spark_session import skip_without_java

pytestmark = pytest.mark.timeout(900)  # one fixture stops six pipelines

SPARKS_PATIENCE = 3 * PATIENCE
LOGGER = logging.getLogger("penstock.spark.pipeline.run")


class Driver:
    """The driver's process, which leads a group of its own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = root / "driver.log"
        self._unread: list[str] = []
        self._part = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.pipeline.stopping_driver", str(root)],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def new_places(self, name: str) -> Places:
        """A buffer with one batch: ids 0 and 1, and what is no JSON."""
        places = Places(self._root / name)
        places.put([b'{"id": 0}', b'{"id": 1}', b"no JSON"])
        return places

    def run(self, places: Places, how: str, trigger: str) -> None:
        """Let it run a pipeline."""
        self.say(f"{places.root.name} {how} {trigger}")

    def say(self, what: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n".encode())
        self._process.stdin.flush()

    def hear(self, word: str) -> str:
        """Wait for something that the driver tells, and pass over what comes before."""
        while True:
            while self._unread:
                line = self._unread.pop(0)
                if line.startswith(word):
                    return line
            self._read(word)

    def signal(self, number: signal.Signals) -> None:
        """Signal Python alone, and return when the run has noticed."""
        self._process.send_signal(number)
        self.hear("noticed: stopping")

    def interrupt_group(self) -> None:
        """What Ctrl-C at a terminal does."""
        os.killpg(self._process.pid, signal.SIGINT)
        self.hear("noticed: stopping")

    def end(self) -> int:
        """Let it come to its end, and return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(SPARKS_PATIENCE)

    def clear_away(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self, word: str) -> None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], SPARKS_PATIENCE)
        data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
        assert data, f"the driver does not say {word!r}:\n{self._log.read_text(errors='replace')[-4000:]}"
        *lines, self._part = (self._part + data).split(b"\n")
        self._unread += [line.decode() for line in lines]


@pytest.fixture(scope="module")
def java() -> None:
    skip_without_java()


# In this process, which the signal goes to while a block is written.


def test_a_signal_in_a_block_stops_the_run_after_it_with_everything_acked(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places, noticed = Places(tmp_path), threading.Event()
    places.put([b'{"id": 0}', b"no JSON"], [b'{"id": 1}'], [b'{"id": 2}'])
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def notice(_record: logging.LogRecord) -> bool:
        noticed.set()
        return True

    def interrupted(rows: Any) -> Any:
        if places.queued() == [1, 2]:
            os.kill(os.getpid(), signal.SIGTERM)
            assert noticed.wait(PATIENCE)
        return rows

    pipeline = (
        places.pipeline(maxBatchesPerTrigger=1, pollInterval=0.05)
        .parse("json", "id bigint")
        .transform(interrupted)
        .dead_letters(places.dead_letters)
        .to_parquet(places.table)
    )
    with caplog.at_level(logging.INFO, LOGGER.name):
        LOGGER.addFilter(notice)
        summary = pipeline.run(spark, "asap")
        LOGGER.removeFilter(notice)

    assert (summary.rows, summary.dead_letters, summary.blocks) == (2, 1, 2)
    assert (places.rows(), len(places.letters()), places.queued()) == ([{"id": 0}, {"id": 1}], 1, [2])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


# A driver's process of its own, and signals to it, to its group, at several moments


@dataclass(frozen=True)
class Stopped:
    """The state after a pipeline that was stopped."""

    places: Places
    done: str
    queued: list[int]
    rows: list[Any]
    letters: int
    seconds: float


def stopped(driver: Driver, places: Places) -> Stopped:
    since = time.monotonic()
    done = driver.hear("done")
    rows = [row["id"] for row in places.rows()]
    return Stopped(places, done, places.queued(), rows, len(places.letters()), time.monotonic() - since)


@dataclass(frozen=True)
class Story:
    """One driver that ran several pipelines, each stopped in its own way, and how it ended."""

    stops: dict[str, Stopped]
    code: int


@pytest.fixture(scope="module")
def story(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    driver = Driver(tmp_path_factory.mktemp("stopping"))
    try:
        yield Story(
            {
                "in a block": stop_in_the_second_block(driver),
                "idle": stop_when_idle(driver, "idle", "asap"),
                "between triggers": stop_when_idle(driver, "between", "10 minutes"),
                "by Ctrl-C": interrupt_in_a_block(driver),
                **stop_at_once_and_run_again(driver),
            },
            driver.end(),
        )
    finally:
        driver.clear_away()


def stop_in_the_second_block(driver: Driver) -> Stopped:
    places = driver.new_places("term")
    driver.run(places, "in-the-driver", "1 second")
    driver.hear("in the block")
    driver.say("go on")
    places.put([b'{"id": 2}'])
    driver.hear("in the block")
    driver.signal(signal.SIGTERM)
    driver.say("go on")
    return stopped(driver, places)


def stop_when_idle(driver: Driver, name: str, trigger: str) -> Stopped:
    places = driver.new_places(name)
    driver.run(places, "idle", trigger)
    driver.hear("idle")
    driver.signal(signal.SIGTERM)
    return stopped(driver, places)


def interrupt_in_a_block(driver: Driver) -> Stopped:
    places = driver.new_places("interrupt")
    driver.run(places, "in-the-driver", "asap")
    driver.hear("in the block")
    driver.interrupt_group()
    driver.say("go on")
    return stopped(driver, places)


def stop_at_once_and_run_again(driver: Driver) -> dict[str, Stopped]:
    places = driver.new_places("twice")
    for name in (HELD, RELEASED):
        os.mkfifo(places.root / name)
    driver.run(places, "in-a-task", "asap")
    with (places.root / HELD).open() as pipe:
        pipe.read()
    driver.signal(signal.SIGTERM)
    driver.signal(signal.SIGTERM)
    after_two_signals = stopped(driver, places)
    (places.root / HELD).unlink()
    driver.run(places, "in-a-task", "available_now")
    return {"at once": after_two_signals, "the next run": stopped(driver, places)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "rows", "done"),
    [
        ("in a block", [0, 1, 2], "done 3 2"),
        ("idle", [0, 1], "done 2 1"),
        ("between triggers", [0, 1], "done 2 1"),
        ("by Ctrl-C", [0, 1], "done 2 1"),
        ("the next run", [0, 1], "done 2 1"),
    ],
)
def test_what_was_read_is_in_the_tables_once_and_acked(story: Story, when: str, rows: list[int], done: str) -> None:
    stop = story.stops[when]
    assert (stop.rows, stop.letters, stop.queued, stop.done) == (rows, 1, [], done)
    assert stop.seconds < PATIENCE  # and not in the ten minutes of a trigger
    assert story.code == 0


@pytest.mark.slow
def test_a_second_signal_stops_at_once_with_nothing_acked(story: Story) -> None:
    stop = story.stops["at once"]
    assert (stop.done, stop.rows, stop.queued) == ("done 0 0", [], [0])


# The signals


def test_the_first_signal_asks_and_the_second_is_urgent() -> None:
    with Stopping() as stopping:
        states = [(stopping.is_asked, stopping.is_urgent)]
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
            states.append((stopping.is_asked, stopping.is_urgent))
    assert states == [(False, False), (True, False), (True, True)]


def test_the_handlers_that_were_there_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Stopping():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_no_handler_is_touched() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    def run() -> None:
        with Stopping() as stopping:
            seen.extend([signal.getsignal(signal.SIGTERM), stopping.is_asked])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [before, False]
