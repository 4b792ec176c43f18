"""A reader of files is killed over and over while they grow, rotate, are renamed and truncated: each line comes once.

The sink keeps the tokens of a block with its lines, in one fsynced line; at a start they are committed. So a kill
between the sink and the commit repeats nothing. The pattern matches the names of rotated files too: one that is rotated
twice while no reader runs was never there under its first name.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.engine import BatchEngine, EngineConfig, FileReceiver, FileToken, WorkBatch
from tests.support.processes import PATIENCE, Child, Parent, Start


def read_files(parent: Parent, folder: str, output: str) -> None:
    """Read until this process is killed."""
    _drop_torn_line(Path(output))
    with open(output, "ab") as sunk, FileReceiver(Path(folder) / "*.log*") as receiver:

        def sink(batch: WorkBatch) -> None:
            line = {"tokens": batch.commit_tokens, "lines": [record.value.decode() for record in batch.records]}
            sunk.write(json.dumps(line).encode() + b"\n")
            sunk.flush()
            os.fsync(sunk.fileno())
            receiver.commit(batch.commit_tokens)

        receiver.commit(kept_tokens(Path(output)))
        parent.tell("reading")
        BatchEngine(EngineConfig(max_records=7)).run(receiver, lambda batch: batch, sink, commit="sink_managed")


def _drop_torn_line(output: Path) -> None:
    if output.exists():
        data = output.read_bytes()
        with output.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def blocks_in(output: Path) -> list[dict[str, list[object]]]:
    data = output.read_bytes() if output.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def kept_tokens(output: Path) -> list[FileToken]:
    tokens = [FileToken(*token) for block in blocks_in(output) for token in block["tokens"]]  # type: ignore[misc]
    return list({token.file: token for token in tokens}.values())


def lines_in(output: Path) -> Counter[str]:
    return Counter(str(line) for block in blocks_in(output) for line in block["lines"])


class Writer:
    """Writes numbered lines into files, and does to them what loggers do."""

    def __init__(self, folder: Path, output: Path, seed: int) -> None:
        self._folder, self._output = folder, output
        self._dice = random.Random(seed)
        self._paths = [folder / f"{name}.log" for name in "abc"]
        self.written = 0
        self.done = Counter[str]()

    def step(self, child: Child | None) -> None:
        path = self._dice.choice(self._paths)
        what = self._dice.choices(["grow", "in pieces", "rotate", "truncate", "new"], [60, 20, 10, 3, 5])[0]
        self.done[what] += 1
        if what == "rotate" and path.exists():
            for number in range(self.done["rotate"], 0, -1):
                older = path.with_suffix(f".log.{number}")
                if older.exists():
                    older.rename(path.with_suffix(f".log.{number + 1}"))
            path.rename(path.with_suffix(".log.1"))
        elif what == "truncate" and path.exists() and child is not None:
            self.wait_for_all()  # what was not read by then would be lost with any reader
            os.truncate(path, 0)
        elif what == "new":
            self._write(self._folder / f"extra-{self.written}.log", pieces=1)
        else:
            self._write(path, pieces=3 if what == "in pieces" else 1)

    def _write(self, path: Path, pieces: int) -> None:
        count = self._dice.randrange(1, 20)
        text = "".join(f"line {self.written + number}\n" for number in range(count))
        self.written += count
        cut = len(text) // pieces
        for number in range(pieces):
            with path.open("a") as file:
                file.write(text[number * cut : None if number == pieces - 1 else (number + 1) * cut])

    def wait_for_all(self) -> None:
        until = time.monotonic() + PATIENCE
        while len(lines_in(self._output)) < self.written:
            assert time.monotonic() < until, f"{self.written} lines were written, and not all come"
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(8, 1), pytest.param(40, 2, marks=pytest.mark.slow), pytest.param(300, 3, marks=pytest.mark.chaos)],
)
@pytest.mark.timeout(1200)
def test_each_line_comes_once_while_files_change_and_the_reader_is_killed(
    kills: int, seed: int, tmp_path: Path, start: Start
) -> None:
    folder, output, dice = tmp_path / "logs", tmp_path / "sunk", random.Random(seed)
    folder.mkdir()
    writer = Writer(folder, output, seed)
    for _ in range(kills):
        for _ in range(dice.randrange(4)):
            writer.step(None)
        child = start(read_files, str(folder), str(output))
        assert child.hear() == "reading"
        for _ in range(dice.randrange(1, 25)):
            writer.step(child)
        time.sleep(dice.random() / 20)  # the kill comes at any moment
        assert not child.has_spoken(), child.hear()
        child.kill()
    start(read_files, str(folder), str(output))
    writer.wait_for_all()
    found = lines_in(output)
    twice = {line: count for line, count in found.items() if count > 1}
    print(f"{kills} kills, {writer.written} lines, {dict(writer.done)}: {len(found)} came, {len(twice)} twice")
    assert not twice
    assert set(found) == {f"line {number}" for number in range(writer.written)}
