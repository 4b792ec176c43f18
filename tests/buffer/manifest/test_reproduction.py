"""A seed is a whole run of the native world: one thread, and the same calls each time, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from tests.buffer.manifest.world import run
from tests.support.repository import ROOT

pytestmark = pytest.mark.usefixtures("silence")

MANIFESTS = ["native"]
SEEDS = range(10)
TRACES = """
import logging
logging.getLogger("penstock").setLevel(logging.CRITICAL)
from tests.buffer.manifest.world import run
for seed in range({stop}):
    outcome = run(seed)
    print(seed, outcome.trace, sorted(outcome.events.items()), outcome.complaints)
"""


def traces_of_process(hash_seed: int) -> str:
    command = [sys.executable, "-c", TRACES.format(stop=SEEDS.stop)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_seed_gives_the_same_run_twice() -> None:
    assert [run(seed) for seed in SEEDS] == [run(seed) for seed in SEEDS]


def test_a_seed_gives_the_same_run_in_processes_that_hash_differently() -> None:
    first, second = traces_of_process(1), traces_of_process(2)
    assert len(first.splitlines()) == len(SEEDS)
    assert first == second


def test_each_seed_gives_a_run_of_its_own() -> None:
    assert len({run(seed).trace for seed in SEEDS}) == len(SEEDS)


def test_a_world_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[str]()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    before = threading.active_count()
    for seed in SEEDS:
        run(seed)
    assert started == []
    assert threading.active_count() == before
