"""Drivers that are gone when the test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.kills.harness import Driver, StartDriver
from tests.spark.kills.job import Job
from tests.spark.kills.marks import Fate


@pytest.fixture
def start_driver() -> Iterator[StartDriver]:
    """Start drivers that are gone when the test is over, however it ends."""
    started: list[Driver] = []

    def start(job: Job, fate: Fate | None = None) -> Driver:
        driver = Driver(job, fate)
        started.append(driver)
        return driver

    yield start
    for driver in started:
        driver.clear_away()
