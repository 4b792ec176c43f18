"""An engine that is killed while it stores dead letters: none is lost, and a torn line is no letter."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import DurableEventQueue
from penstock.engine import BatchEngine, DlqPolicy, EngineConfig, QueueReceiver, WorkBatch, to_files
from tests.engine.letters.stores import KINDS, ROUTES, letters, payloads_at, stored_at
from tests.support.dying_calls import die_at
from tests.support.processes import Parent, Start

BLOCK = 3
EVERY = "every step"
STEPS = 4  # of a block
EVENTS = [b"{%d" % number for number in range(2 * BLOCK)]  # none of them is JSON
BLOCKS_PER_LIFE = 20


def work(parent: Parent, kind: str, source: str, place: str, stop_at: str | None) -> int:
    """Set every event aside, in blocks; report the step that is asked for, and wait there, or report every step."""

    def step(name: str) -> None:
        if stop_at in (name, EVERY):
            parent.tell(name)
        if stop_at == name:
            parent.wait()

    class Receiver(QueueReceiver):
        def commit(self, tokens: Any) -> None:
            step("before the commit")
            super().commit(tokens)
            step("after the commit")

    with DurableEventQueue(source) as queue, ROUTES[kind](place) as route:

        def storing(found: Any) -> None:
            step("before the route")
            route(found)
            step("after the route")

        parent.tell("begun")
        engine = BatchEngine(EngineConfig(recv_timeout=0, max_records=BLOCK), dlq=DlqPolicy.route(storing))
        keep = lambda batch: WorkBatch(batch.records)  # noqa: E731
        done = engine.run(Receiver(queue), keep, lambda batch: None, parse=True, until_idle=True)
        if stop_at == EVERY:
            parent.wait()
        return done.dead_lettered


def push(source: Path, events: list[bytes]) -> None:
    with DurableEventQueue(source) as queue:
        queue.push_many(events)


@pytest.mark.parametrize(
    ("step", "there"),
    [
        ("before the route", {}),
        ("after the route", dict.fromkeys(EVENTS[:BLOCK], 2)),
        ("before the commit", dict.fromkeys(EVENTS[:BLOCK], 2)),
        ("after the commit", {}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_each_step_of_a_block_loses_no_letter(
    kind: str, step: str, there: dict[bytes, int], tmp_path: Path, start: Start
) -> None:
    push(tmp_path / "source", EVENTS)
    names = (kind, str(tmp_path / "source"), str(tmp_path / "letters"))
    child = start(work, *names, step)
    assert [child.hear(), child.hear()] == ["begun", step]
    child.kill()
    again = start(work, *names, None)
    assert again.hear() == "begun"
    again.answer()
    found = stored_at(tmp_path / "letters")
    assert Counter(letter.payload for letter in found) == dict.fromkeys(EVENTS, 1) | there
    assert len({letter.id for letter in found}) == len(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_that_is_killed_at_any_time_loses_no_letter(
    kind: str, kills: int, tmp_path: Path, start: Start
) -> None:
    chance, events = random.Random(kills), list[bytes]()
    names = (kind, str(tmp_path / "source"), str(tmp_path / "letters"))
    for life in range(kills):
        more = [b"{%d %d" % (life, number) for number in range(BLOCKS_PER_LIFE * BLOCK)]
        push(tmp_path / "source", more)
        events += more
        child = start(work, *names, EVERY)
        for _ in range(1 + chance.randrange(STEPS * BLOCKS_PER_LIFE)):
            child.hear()
        child.kill()  # it goes on meanwhile, and is at any line
    last = start(work, *names, None)
    last.hear()
    last.answer()
    found = Counter(payloads_at(tmp_path / "letters"))
    assert found.keys() == set(events)
    twice = found.total() - len(found)
    assert twice <= BLOCK * kills
    print(f"\n{kills} kills; {len(found)} letters, {twice} of them again; lost 0")


def store_and_die_at(parent: Parent, place: str, number: int) -> None:
    """Store letters in files of one block each; die before a call of the system, counted from 0. Report each block."""
    die_at(number)
    with to_files(place, rotate_bytes=1) as route:
        for block in range(3):
            route(letters(b"%d" % block))
            parent.tell(block)
    parent.tell("closed")
    parent.wait()


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_call_of_the_system_has_stored_what_it_reported(
    tmp_path: Path, start: Start
) -> None:
    reported = list[Any]()
    kills = 0
    while "closed" not in reported:
        place = tmp_path / str(kills)
        to_files(place).close()
        (place / "letters-0.ndjson.open").write_bytes(b"")  # of writers that were killed before
        (place / "letters-1.ndjson.open").write_bytes(b'{"letter": 1')
        child = start(store_and_die_at, str(place), kills)
        reported = []
        with suppress(EOFError, ConnectionResetError):
            while "closed" not in reported:
                reported.append(child.hear())
        child.kill()
        stored = [b"%d" % block for block in reported if block != "closed"]
        before = payloads_at(place)
        assert before[: len(stored)] == stored
        assert before in (stored, [*stored, b"%d" % len(stored)])
        with to_files(place) as route:
            route(letters(b"last"))
        assert payloads_at(place) == [*before, b"last"]
        assert not list(place.glob("*.open"))
        kills += 1
    assert kills > 20


def die_after(size: int, place: Path) -> None:
    """In a child: store two blocks; the system ends the process when the file has so many bytes."""
    pid = os.fork()
    if not pid:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            route = to_files(place)
            route(letters(b"1"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            route(letters(b"2", b"3"))
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGXFSZ


def test_a_process_that_dies_in_the_middle_of_a_line_leaves_whole_letters_and_no_other(tmp_path: Path) -> None:
    with to_files(tmp_path / "measured") as route:
        route(letters(b"1"))
    [measured] = (tmp_path / "measured").glob("*.ndjson")
    line = measured.stat().st_size
    for size in range(line, 3 * line, 17):
        place = tmp_path / str(size)
        die_after(size, place)
        [file] = place.glob("*.open")
        assert file.stat().st_size == size
        stored = [b"1", b"2"][: size // line]
        assert payloads_at(place) == stored
        with to_files(place) as route:
            route(letters(b"4"))
        assert payloads_at(place) == [*stored, b"4"]
        assert not list(place.glob("*.open"))
