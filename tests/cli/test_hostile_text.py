"""Text of others on a terminal and in a pipe: nothing of it moves a cursor, sets a title, or adds a line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
import tty
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.hostile import HOSTILE, INJECTED, Places, make_places
from tests.support.command import Here

_ACTED_ON = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MARK = "--- "
_RUN_ALL = """
import json, logging, sys
from penstock.cli.app import main
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
for words in json.loads(sys.argv[1]):
    print("--- " + " ".join(words[:2]), flush=True)
    sys.argv = ["penstock", *words]
    try:
        main()
    except SystemExit:
        pass
    sys.stdout.flush()
"""


def commands(places: Places) -> list[list[str]]:
    buffer, old = str(places.buffer), str(places.old)
    return [
        ["status", buffer],
        ["status", buffer, "--json"],
        ["status", old],
        ["groups", "list", buffer],
        ["groups", "list", buffer, "--json"],
        ["groups", "drop", buffer, "no-such-group"],
        ["writers", "list", buffer],
        ["writers", "list", buffer, "--json"],
        ["manifest", "dump", buffer],
        ["manifest", "dump", old],
        ["consume", buffer, "--no-ack"],
        ["consume", buffer, "--no-ack", "--json"],
        ["consume", old, "--no-ack"],
        ["consume", str(places.owned)],
        ["produce", str(places.owned), os.devnull],
        ["metalog", "status", str(places.log)],
        ["metalog", "status", str(places.log), "--json"],
        ["metalog", "dump", str(places.log)],
        ["queue", "dump", str(places.queue)],
        ["run", str(places.pipeline)],
    ]


@dataclass(frozen=True)
class Piped:
    """What commands printed where no terminal is, one by one, and what they logged."""

    answers: list[bytes]
    errors: str


def in_a_pipe(words: Sequence[Sequence[str]]) -> Piped:
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ALL, json.dumps(words)], capture_output=True, check=True, timeout=300
    )
    answers = [answer.partition(b"\n")[2] for answer in done.stdout.split(_MARK.encode())[1:]]
    assert len(answers) == len(words)
    return Piped(answers, done.stderr.decode())


def on_a_terminal(words: Sequence[Sequence[str]]) -> str:
    """The same on a terminal, which has no colours, so that every escape sequence would be another's."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    termios.tcsetwinsize(theirs, (50, 200))
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1"}
    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", _RUN_ALL, json.dumps(words)], stdout=theirs, stderr=theirs, env=environment
    ) as running:
        os.close(theirs)
        try:
            while block := os.read(ours, 1 << 16):
                shown += block
        except OSError:
            pass  # how a terminal ends that no process has open
        finally:
            os.close(ours)
        assert running.wait(300) == 0
    return shown.decode(errors="surrogateescape")


def check(shown: str) -> None:
    acted_on = {char for char in shown if char != "\n" and unicodedata.category(char) in _ACTED_ON}
    assert not acted_on
    assert not [line for line in shown.split("\n") if line.strip(" │┃|").startswith(INJECTED)]


def without_raw_events(words: list[list[str]]) -> list[list[str]]:
    return [one for one in words if one[0] != "consume" or "--json" in one]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return make_places(tmp_path_factory.mktemp("hostile"), HOSTILE)


@pytest.fixture(scope="module")
def piped(hostile: Places) -> Piped:
    """The answers of every command, and at the end the events as they are."""
    return in_a_pipe([*without_raw_events(commands(hostile)), ["consume", str(hostile.buffer), "--no-ack", "-n", "2"]])


def test_nothing_that_a_terminal_acts_on_reaches_it(hostile: Places) -> None:
    words = commands(hostile)
    shown = on_a_terminal(words)
    assert shown.count(_MARK) == len(words)
    assert "[red]x[/red]\\x1b[2J" in shown
    check(shown)


def test_nothing_that_a_terminal_acts_on_is_in_a_pipe_or_a_log(piped: Piped) -> None:
    for answer in piped.answers[:-1]:
        check(answer.decode())
    check(piped.errors)
    assert "[red]x[/red]\\x1b[2J" in piped.errors


def test_events_go_into_a_pipe_as_they_are(piped: Piped) -> None:
    assert piped.answers[-1] == HOSTILE.encode() + b"\n\xff" + HOSTILE.encode() + b"\n"


def test_json_says_what_was_written(hostile: Places, piped: Piped) -> None:
    def answer_of(*wanted: str) -> bytes:
        words = without_raw_events(commands(hostile))
        return next(answer for one, answer in zip(words, piped.answers, strict=False) if set(wanted) <= set(one))

    assert [group["name"] for group in json.loads(answer_of("groups", "list", "--json"))] == ["default", HOSTILE]
    assert [*json.loads(answer_of("writers", "--json"))] == [HOSTILE]
    assert json.loads(answer_of("manifest", str(hostile.old)))["entries"][0]["location"] == HOSTILE
    assert json.loads(answer_of("metalog", "dump").split(b"\n")[0])["event"]["topic"] == HOSTILE
    event = json.loads(answer_of("consume", "--json").split(b"\n")[0])
    assert (event["value"], event["key"], event["headers"][0]["key"]) == (HOSTILE, HOSTILE, HOSTILE)


def test_a_newline_in_a_name_adds_no_line(tmp_path: Path, here: Here) -> None:
    counts = []
    for name, text in (("tab", "a\tb"), ("newline", "a\nb")):
        words = without_raw_events(commands(make_places(tmp_path / name, text)))
        answers = [here(*one) for one in words if one[0] != "run"]
        counts.append([(answer.out.count("\n"), answer.err.count("\n")) for answer in answers])
    assert counts[0] == counts[1]
