"""A driver is killed at random moments while producers keep producing, and started again each time."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Producer
from penstock.buffer import ProducerConfig
from tests.spark.kills.harness import StartDriver
from tests.spark.kills.job import PER_BATCH, Job, assert_exactly_once, event, keep_taking
from tests.spark.kills.kinds import BUFFER, TABLES
from tests.spark.kills.moments import die, moments
from tests.support.processes import Child, Parent, Start

PRODUCERS = 2
_PACE = 0.5  # seconds between two batches of a producer: a driver that starts always finds some


def keep_producing(parent: Parent, job: Job, first: int) -> range:
    """Produce numbers, of which every producer has its own, until it is to stop; return them."""
    count = 0
    with Producer(job.buffer, ProducerConfig(flush_interval=3600)) as producer:
        while not parent.wants():
            producer.produce([event(first + (count + one) * PRODUCERS) for one in range(PER_BATCH)])
            producer.flush()
            count += PER_BATCH
            time.sleep(_PACE)
    return range(first, first + count * PRODUCERS, PRODUCERS)


def kill_and_finish(
    job: Job, kills: int, seed: int, spark: Any, start: Start, start_driver: StartDriver, taker: Child | None = None
) -> None:
    """Kill drivers while producers produce, then run to the end, and look for every event."""
    producers = [start(keep_producing, job, first) for first in range(PRODUCERS)]
    last_marks, overtaken, when = Counter[str](), 0, moments(seed)
    for _ in range(kills):
        moment = next(when)
        driver = start_driver(job)
        while not die(driver, moment):
            overtaken += 1
            driver = start_driver(job)
        last_marks[f"{driver.marks[-1][0]}"] += 1
    for producer in producers:
        producer.tell("stop")
    numbers = [number for producer in producers for number in producer.answer()]

    job.pipeline().run(spark, trigger="available_now")

    consumed: list[int] = []
    if taker is not None:
        taker.tell("stop")
        consumed = taker.answer()
    found = assert_exactly_once(job, spark, numbers, consumed)
    print(
        f"\n{kills} kills, {(kills + 1) // 2} of Python alone and {kills // 2} with its JVM, last seen at "
        f"{dict(last_marks)}; {overtaken} drivers were overtaken.\n"
        f"{len(numbers)} events, {found.rows.total()} rows, {found.letters.total()} dead letters, lost "
        f"{len(found.lost(numbers))}, twice {len(found.twice())}; a block was found in the table "
        f"{(job.root / 'driver.log').read_text(errors='replace').count('acking what is there')} times; {len(consumed)} "
        "rows were consumed on the way"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", TABLES)
def test_every_event_is_in_a_table_once_however_often_the_driver_is_killed(
    kind: str, kills: int, spark: Any, tmp_path: Path, start: Start, start_driver: StartDriver
) -> None:
    kill_and_finish(Job(tmp_path, kind), kills, 48, spark, start, start_driver)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.chaos)])
def test_every_event_is_in_a_buffer_once_however_often_the_driver_is_killed(
    kills: int, spark: Any, tmp_path: Path, start: Start, start_driver: StartDriver, manifest: str
) -> None:
    job = Job(tmp_path, BUFFER)
    # On version 1 a block is recognised among what is still queued: it may not be read before it comes again.
    taker = start(keep_taking, job) if manifest == "native" else None
    if taker is not None:
        taker.hear()
    kill_and_finish(job, kills, 25, spark, start, start_driver, taker)
