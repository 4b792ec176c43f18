"""`penstock dlq replay`, killed at every step and at any time, alone and two at once: each letter is sent once."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import peek
from penstock.buffer import Groups
from penstock.engine import DeadLetter, to_buffer, to_files, to_queue
from tests.support.killed_commands import KILLED, Command, KilledCommands, killed_commands

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from tests.spark.kills.kinds import ICEBERG, TABLES, catalog_of, name_of, open_rows
from tests.support.plain_tables import put_letters

LETTERS = 10
FIXES = """
def repair(letter):
    if letter.payload in (b"3", b"8"):
        raise ValueError("no")
    return b"fixed " + letter.payload
"""
ROUTES: dict[str, Any] = {"files": to_files, "queue": to_queue, "buffer": to_buffer}
ONCE = Counter({b"fixed %d" % number: 1 for number in range(LETTERS) if number not in (3, 8)})


class Scene:
    """Letters in a table, or where a route put them, and a buffer that they go into.

    `begin` makes both as if nothing had been replayed.
    """

    def __init__(self, top: Path, kind: str, commands: KilledCommands) -> None:
        self._top = top
        place = top / "letters"
        halves = [[b"%d" % number for number in range(first, first + LETTERS // 2)] for first in (0, LETTERS // 2)]
        if kind in ROUTES:
            for half in halves:
                with ROUTES[kind](place) as route:
                    route([DeadLetter(payload, "it ends too early") for payload in half])
        else:
            table = open_rows(kind, None, place)
            for block, half in enumerate(halves):
                put_letters(table, [{"payload": payload} for payload in half], block)  # type: ignore[arg-type]
        (top / "fixes.py").write_text(FIXES)
        where = [str(place)]
        if kind == ICEBERG:
            where = [name_of(place), "--catalog", f"warehouse={catalog_of(place)['warehouse']}"]
        self._where = where
        self._commands = commands
        self.begin()

    def begin(self) -> None:
        for notes in self._top.rglob(".letters.replays"):
            shutil.rmtree(notes)
        shutil.rmtree(self._top / "events", ignore_errors=True)
        Groups(str(self._top / "events")).create("audit")

    @property
    def words(self) -> list[str]:
        return ["dlq", "replay", *self._where, "--to", str(self._top / "events"), "--fix", "fixes:repair"]

    def events(self) -> Counter[bytes]:
        return Counter(record.value for record in peek(self._top / "events", 1_000))

    def check_not_twice(self) -> None:
        assert self.events() <= ONCE

    def finish(self, at_once: int) -> None:
        """Run replays to their end; each of them fails for the two letters that cannot be fixed."""
        statuses = self._commands.run(*[Command(self.words)] * at_once)
        assert statuses == [1] * at_once, self._commands.output()
        assert self.events() == ONCE
        self._commands.finish(*self.words, status=1)
        assert self.events() == ONCE


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[KilledCommands]:
    with killed_commands(tmp_path) as running:
        yield running


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", [*TABLES, *ROUTES])
def test_a_replay_killed_at_any_step_and_run_again_sends_each_letter_once(
    kind: str, stride: int, tmp_path: Path, commands: KilledCommands
) -> None:
    scene = Scene(tmp_path, kind, commands)
    step = 0
    while commands.run(Command(scene.words, at_call=step)) == [KILLED]:
        scene.check_not_twice()
        scene.finish(at_once=1 + step // stride % 2)
        scene.begin()
        step += stride
    assert step > 50
    assert scene.events() == ONCE
    print(f"\nkilled at {step // stride} of {step} calls; {ONCE.total()} of {LETTERS} letters sent, each once")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("kind", [*TABLES, *ROUTES])
def test_two_replays_at_once_that_are_killed_at_any_time_send_each_letter_once(
    kind: str, kills: int, tmp_path: Path, commands: KilledCommands
) -> None:
    scene, chance = Scene(tmp_path, kind, commands), random.Random(kills)
    commands.finish(*scene.words, status=1)
    usual = commands.seconds
    killed = 0
    while killed < kills:
        scene.begin()
        for _ in range(3):
            delays = [usual * 1.5 * chance.random() for _ in range(2)]
            killed += commands.run(*(Command(scene.words, after=delay) for delay in delays)).count(KILLED)
            scene.check_not_twice()
        scene.finish(at_once=2)
    print(f"\n{killed} kills; {ONCE.total()} of {LETTERS} letters sent, each once")
