"""`penstock demo`: many producers, some of them killed, one consumer, and every event exactly once."""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.buffer import Consumer, Manifest, Producer, ProducerConfig
from penstock.storage import ObjectStore, open_store

AT_ONCE = 25  # events between two looks at the handles
QUICK = ProducerConfig(flush_interval=0.01)

_spawn = multiprocessing.get_context("spawn")


@dataclass
class Seen:
    """What the consumer of the demo was given."""

    batches: int = 0
    events: list[str] = field(default_factory=list)


def run_demo(directory: Path | None, *, producers: int, events: int, kills: int, console: Console) -> bool:
    """Run the demo, and say whether every event that was reported as done came, once, and in order."""
    root = str(directory or tempfile.mkdtemp(prefix="penstock-demo-"))
    store = open_store(root)
    run = uuid.uuid4().hex[:8]
    console.print(f"{producers} processes produce {events} events each into a buffer in {root}.", highlight=False)
    console.print(
        "A consumer reads along and acks. More producers are killed with SIGKILL in the middle of their work."
    )
    started = time.monotonic()
    with Consumer(store) as consumer:
        seen = Seen()
        with _reading(consumer, seen), _running(producers, root, run, events) as running:
            done: list[str] = []
            for number in range(kills):
                done += _kill_a_producer(root, f"{run}/victim{number}")
                console.print(
                    f"  killed producer {number + 1} of {kills}; the consumer is at {len(seen.events)} events"
                )
            done += [event for _, answers in running for event in answers.recv()]
        seconds = time.monotonic() - started
    ours = [event for event in seen.events if event.startswith(run)]
    lost, twice = set(done) - set(ours), len(ours) - len(set(ours))
    disorder = _out_of_order(ours)
    _show(console, root, done=len(done), came=len(ours), lost=len(lost), twice=twice, disorder=disorder)
    console.print(f"{len(ours) / seconds:,.0f} events/s in {seen.batches} batches, each synced to disk and acked.")
    _show_what_lies_there(console, store, root)
    return not lost and not twice and not disorder


def _produce(root: str, name: str, events: int, answers: Connection) -> None:
    with Producer(root, QUICK) as producer:
        for number in range(events):
            producer.produce(f"{name}/{number}")
        producer.flush()
    answers.send([f"{name}/{number}" for number in range(events)])


def _produce_until_killed(root: str, name: str, answers: Connection) -> None:
    """Produce on and on. What is told is what is done; what is under way when the kill comes may be or may not be."""
    with Producer(root, QUICK) as producer:
        for start in itertools.count(0, AT_ONCE):
            some = [f"{name}/{number}" for number in range(start, start + AT_ONCE)]
            handles = [producer.produce(event) for event in some]
            for handle in handles:
                handle.result()
            answers.send(some)


def _kill_a_producer(root: str, name: str) -> list[str]:
    """Start a producer, kill it while it works, and return what it had reported as done."""
    producer, answers = _start(_produce_until_killed, root, name)
    done: list[str] = answers.recv()
    producer.kill()
    producer.join()
    try:
        while answers.poll():
            done += answers.recv()
    except EOFError:
        pass  # the end of what it had to say
    return done


@contextmanager
def _reading(consumer: Consumer, seen: Seen) -> Iterator[None]:
    """Read and ack in the background, until all that was there at the end is read."""
    finished = threading.Event()

    def read() -> None:
        while True:
            was_finished = finished.is_set()
            for batch in consumer:
                seen.batches += 1
                seen.events += [entry.decode() for entry in batch.entries]
                batch.ack()
            if was_finished:
                return
            finished.wait(0.01)

    reader = threading.Thread(target=read, name="demo-reader")
    reader.start()
    try:
        yield
    finally:
        finished.set()
        reader.join()


@contextmanager
def _running(producers: int, root: str, run: str, events: int) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    running: list[tuple[BaseProcess, Connection]] = []
    try:
        for number in range(producers):
            # One by one: should a start fail, those before it are in the list, and are killed below.
            running.append(_start(_produce, root, f"{run}/producer{number}", events))  # noqa: PERF401
        yield running
    finally:
        for process, _ in running:
            process.kill()
            process.join()


def _start(work: Callable[..., None], *args: object) -> tuple[BaseProcess, Connection]:
    """Start a process, and return it with the end of a pipe on which it answers."""
    answers, theirs = _spawn.Pipe(duplex=False)
    process = _spawn.Process(target=work, args=(*args, theirs))
    process.start()
    theirs.close()
    return process, answers


def _out_of_order(events: list[str]) -> int:
    """How many events came before one of the same producer that was produced earlier."""
    last = Counter[str]()
    wrong = 0
    for event in events:
        name, _, number = event.rpartition("/")
        wrong += int(number) < last[name]
        last[name] = int(number)
    return wrong


def _show(console: Console, root: str, **rows: int) -> None:
    table = Table(title=root, title_justify="left")
    table.add_column("what")
    table.add_column("how many", justify="right")
    words = {
        "done": "events reported as done",
        "came": "events consumed (one under way at a kill may have come)",
        "lost": "lost",
        "twice": "consumed twice",
        "disorder": "out of order",
    }
    for name, number in rows.items():
        table.add_row(words[name], str(number))
    console.print(table)


def _show_what_lies_there(console: Console, store: ObjectStore, root: str) -> None:
    """Leave one more event in the queue, and show the directory."""
    with Producer(store) as producer:
        location = producer.produce("one more, for you to look at").result().location
    manifest = Manifest.read(store)
    console.print(f"What lies in {root}:", highlight=False)
    objects = sorted(store.list_objects(), key=lambda meta: meta.path)
    data = [meta for meta in objects if meta.path.endswith(".batch") and meta.path != location]
    for meta in objects:
        if meta not in data:
            console.print(f"  {meta.path}  {meta.size} bytes", highlight=False)
    size = sum(meta.size for meta in data)
    console.print(f"  and {len(data)} data objects ({size} bytes) that are acked: the collector takes them later")
    state = f"epoch {manifest.epoch}, next sequence {manifest.next_sequence}, {len(manifest.entries)} not acked"
    console.print(f"The manifest: {state}. To look at it:")
    console.print(f"  penstock manifest dump {root}", highlight=False)
