"""`penstock demo`: many processes, one object, kills at the worst moment, and nothing lost."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown
from penstock.storage import LocalStore

COUNTER = "demo/counter"
# The worst moments of a write, in turn: with the lock held, with half the work done, with the object just replaced.
WORST_MOMENTS = ("locked", "written", "marked", "moved", "directory synced")

_spawn = multiprocessing.get_context("spawn")


def run_demo(directory: Path | None, *, workers: int, increments: int, kills: int, console: Console) -> bool:
    """Run the demo, and say whether every increment that was reported as done is there exactly once."""
    root = str(directory or tempfile.mkdtemp(prefix="penstock-demo-"))
    store = LocalStore(root)
    # A second run in one directory starts again at nothing.
    store.delete([COUNTER])
    console.print(f"{workers} processes count to {increments} each, in one object below {root}, by compare-and-set.")
    console.print("One more process counts too, and is killed with SIGKILL in the middle of its writes.")
    started = time.monotonic()
    with _running(workers, root, increments) as running:
        reported: list[str] = []
        for number in range(kills):
            moment = WORST_MOMENTS[number % len(WORST_MOMENTS)]
            reported.append(_kill_a_writer(root, f"victim{number}", moment))
            console.print(f"  killed a writer at '{moment}'; the others go on, at {len(_read(store)[0])}")
        reported += [token for _, answers in running for token in answers.recv()]
    seconds = time.monotonic() - started
    tokens, _ = _read(store)
    lost, twice = set(reported) - set(tokens), len(tokens) - len(set(tokens))
    _show(console, store, reported=len(reported), counted=len(tokens), kills=kills, lost=len(lost), twice=twice)
    console.print(f"{len(tokens) / seconds:.0f} increments/s, each synced to disk. Everything lies in {root}:")
    for meta in store.list_objects():
        console.print(f"  {meta.path}  {meta.size} bytes, version {meta.version}", highlight=False)
    return not lost and not twice


def count(store: LocalStore, token: str) -> None:
    """Add a token to the counter, once: what decides after a failed write is whether the token is there."""
    while True:
        tokens, version = _read(store)
        if token in tokens:
            return
        data = json.dumps([*tokens, token]).encode()
        try:
            if version is None:
                store.put_if_absent(COUNTER, data)
            else:
                store.put_if_match(COUNTER, data, version)
        except (AlreadyExists, Conflict, OutcomeUnknown):
            continue
        return


def _count_many(root: str, name: str, increments: int, answers: Connection) -> None:
    store = LocalStore(root)
    done = []
    for number in range(increments):
        count(store, f"{name}-{number}")
        done.append(f"{name}-{number}")
    answers.send(done)


def _count_and_wait_to_be_killed(root: str, name: str, moment: str, answers: Connection) -> None:
    count(LocalStore(root), f"{name}-done")
    answers.send(f"{name}-done")

    def stop(step: str) -> None:
        if step == moment:
            answers.send(step)
            signal.pause()

    count(LocalStore(root, step=stop), f"{name}-killed")


def _kill_a_writer(root: str, name: str, moment: str) -> str:
    """Start a writer, wait until it stands at a bad moment, kill it; say what it had reported as done."""
    writer, answers = _start(_count_and_wait_to_be_killed, root, name, moment)
    done: str = answers.recv()
    answers.recv()
    writer.kill()
    writer.join()
    return done


@contextmanager
def _running(workers: int, root: str, increments: int) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    running: list[tuple[BaseProcess, Connection]] = []
    try:
        for number in range(workers):
            # One by one: should a start fail, those before it are in the list, and are killed below.
            running.append(_start(_count_many, root, f"worker{number}", increments))  # noqa: PERF401
        yield running
    finally:
        for worker, _ in running:
            worker.kill()
            worker.join()


def _start(work: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    """Start a process, and return it with the end of a pipe on which it answers."""
    answers, theirs = _spawn.Pipe(duplex=False)
    process = _spawn.Process(target=work, args=(*args, theirs))
    process.start()
    theirs.close()
    return process, answers


def _read(store: LocalStore) -> tuple[list[str], str | None]:
    """The tokens in the counter, and its version; none and None while there is no counter."""
    try:
        found = store.get(COUNTER)
    except NotFound:
        return [], None
    return json.loads(found.data), found.version


def _show(console: Console, store: LocalStore, **rows: int) -> None:
    table = Table(title=f"{store.url}/{COUNTER}", title_justify="left")
    table.add_column("what")
    table.add_column("how many", justify="right")
    words = {
        "reported": "increments reported as done",
        "counted": "increments in the object (a killed one may have happened)",
        "kills": "writers killed in the middle of a write",
        "lost": "lost",
        "twice": "counted twice",
    }
    for name, number in rows.items():
        table.add_row(words[name], str(number))
    console.print(table)
