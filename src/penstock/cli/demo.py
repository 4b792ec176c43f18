"""`penstock demo`: services push, ship and are killed; an engine processes what comes; nothing is lost."""

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
from typing import cast

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from penstock.buffer import Manifest, Producer
from penstock.engine import BatchEngine, BufferReceiver, DeadLetter, DlqPolicy, WorkBatch, columns, ship
from penstock.queue import DurableEventQueue
from penstock.storage import open_store

AT_ONCE = 25  # events in one push
BROKEN = b"{this is no JSON"

_spawn = multiprocessing.get_context("spawn")


@dataclass
class Sink:
    """Where the demo's engine puts what it has processed."""

    events: list[str] = field(default_factory=list)
    blocks: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)

    def take(self, block: WorkBatch) -> None:
        """Keep the names of a block's events."""
        self.blocks += 1
        self.events += cast("list[str]", block.arrow.column("event").to_pylist())


def run_demo(directory: Path | None, *, producers: int, events: int, kills: int, console: Console) -> bool:
    """Run the demo, and say whether every event that was pushed came, and in order."""
    root = Path(directory or tempfile.mkdtemp(prefix="penstock-demo-"))
    open_store(root)  # which refuses what is no directory
    run, sink = uuid.uuid4().hex[:8], Sink()
    console.print(f"{producers} services push {events} events each into durable queues in {root}.", highlight=False)
    console.print("Each ships its queue into one buffer; an engine parses, processes and acks what comes.")
    console.print("More services are killed with SIGKILL in the middle of their work; their queues are shipped later.")
    started = time.monotonic()
    pushed: list[str] = []
    engine = BatchEngine(dlq=DlqPolicy.route(sink.dead_letters.extend))
    with BufferReceiver(root / "buffer") as receiver, _running(producers, root, run, events) as running:
        with _processing(engine, receiver, sink):
            for number in range(kills):
                pushed += _kill_a_service(root, f"{run}-victim{number}")
                console.print(f"  killed service {number + 1} of {kills}; the engine is at {len(sink.events)} events")
            pushed += [event for _, answers in running for event in answers.recv()]
            for process, _ in running:
                process.join()  # its queue is closed then
            left = ship(root / "queues", root / "buffer", until_idle=True).processed
        engine.run(receiver, columns(_process), sink.take, parse=True, until_idle=True)
    seconds = time.monotonic() - started
    ours = [event for event in sink.events if event.startswith(run)]
    lost, twice = set(pushed) - set(ours), len(ours) - len(set(ours))
    disorder = _out_of_order(list(dict.fromkeys(ours)))
    broken = [letter for letter in sink.dead_letters if letter.payload == BROKEN]
    _show(
        console,
        root,
        pushed=len(pushed),
        came=len(set(ours)),
        lost=len(lost),
        twice=twice,
        disorder=disorder,
        letters=len(broken),
    )
    console.print(
        f"{len(ours) / seconds:,.0f} events/s, from a synced push to an ack after the sink, in {sink.blocks} blocks; "
        f"{left} were shipped from queues that services left behind."
    )
    _show_what_lies_there(console, root)
    return not lost and not disorder and (not twice or kills > 0) and len(broken) >= producers


def _process(events: pa.RecordBatch) -> pa.RecordBatch:
    """What a user's column function would do: here, add a column."""
    return events.append_column("where", pa.array(["demo"] * events.num_rows, pa.string()))


@contextmanager
def _serving(root: Path, name: str) -> Iterator[DurableEventQueue[bytes]]:
    """A service's queue, and a thread that ships it."""
    stop = threading.Event()
    with DurableEventQueue(root / "queues" / name) as queue:
        shipper = threading.Thread(target=ship, args=(queue, root / "buffer"), kwargs={"stop": stop}, name="shipper")
        shipper.start()
        try:
            queue.push(BROKEN)
            yield queue
        finally:
            stop.set()
            shipper.join()


def _push(queue: DurableEventQueue[bytes], name: str, start: int, end: int) -> list[str]:
    """Push some events, and return their names. They are on disk then."""
    some = [f"{name}/{number}" for number in range(start, end)]
    queue.push_many([msgspec.json.encode({"event": event, "number": int(event.rpartition("/")[2])}) for event in some])
    return some


def _serve(root: Path, name: str, events: int, answers: Connection) -> None:
    with _serving(root, name) as queue:
        starts = range(0, events, AT_ONCE)
        pushed = [event for start in starts for event in _push(queue, name, start, min(start + AT_ONCE, events))]
    answers.send(pushed)


def _serve_until_killed(root: Path, name: str, answers: Connection) -> None:
    with _serving(root, name) as queue:
        for start in itertools.count(0, AT_ONCE):
            answers.send(_push(queue, name, start, start + AT_ONCE))


def _kill_a_service(root: Path, name: str) -> list[str]:
    """Start a service, kill it while it works, and return what it had pushed."""
    service, answers = _start(_serve_until_killed, root, name)
    pushed: list[str] = answers.recv()
    service.kill()
    service.join()
    try:
        while answers.poll():
            pushed += answers.recv()
    except EOFError:
        pass  # the end of what it had to say
    return pushed


@contextmanager
def _processing(engine: BatchEngine, receiver: BufferReceiver, sink: Sink) -> Iterator[None]:
    """Let the engine work in the background."""
    shutdown = threading.Event()

    def work() -> None:
        engine.run(receiver, columns(_process), sink.take, parse=True, shutdown=shutdown)

    worker = threading.Thread(target=work, name="demo-engine")
    worker.start()
    try:
        yield
    finally:
        shutdown.set()
        worker.join()


@contextmanager
def _running(producers: int, root: Path, run: str, events: int) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    running: list[tuple[BaseProcess, Connection]] = []
    try:
        for number in range(producers):
            # One by one: should a start fail, those before it are in the list, and are killed below.
            running.append(_start(_serve, root, f"{run}-service{number}", events))  # noqa: PERF401
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
    """How many events came before one of the same service that was pushed earlier."""
    last = Counter[str]()
    wrong = 0
    for event in events:
        name, _, number = event.rpartition("/")
        wrong += int(number) < last[name]
        last[name] = int(number)
    return wrong


def _show(console: Console, root: Path, **rows: int) -> None:
    table = Table(title=str(root), title_justify="left")
    table.add_column("what")
    table.add_column("how many", justify="right")
    words = {
        "pushed": "events pushed",
        "came": "events at the sink (one under way at a kill may have come)",
        "lost": "lost",
        "twice": "twice (shipped, and killed before the ack)",
        "disorder": "out of order",
        "letters": "broken events, set aside as dead letters",
    }
    for name, number in rows.items():
        table.add_row(words[name], str(number))
    console.print(table)


def _show_what_lies_there(console: Console, root: Path) -> None:
    """Leave one more event in the buffer, and show what lies in it."""
    store = open_store(root / "buffer")
    with Producer(store) as producer:
        location = producer.produce("one more, for you to look at").result().location
    manifest = Manifest.read(store)
    console.print(f"What lies in {root / 'buffer'}:", highlight=False)
    objects = sorted(store.list_objects(), key=lambda meta: meta.path)
    data = [meta for meta in objects if meta.path.endswith(".batch") and meta.path != location]
    for meta in objects:
        if meta not in data:
            console.print(f"  {meta.path}  {meta.size} bytes", highlight=False)
    size = sum(meta.size for meta in data)
    console.print(f"  and {len(data)} data objects ({size} bytes) that are acked: the collector takes them later")
    state = f"epoch {manifest.epoch}, next sequence {manifest.next_sequence}, {len(manifest.entries)} not acked"
    console.print(f"The manifest: {state}. To look at it, and at a queue:")
    console.print(f"  penstock manifest dump {root / 'buffer'}", highlight=False)
    console.print(f"  penstock queue dump {next((root / 'queues').iterdir())}", highlight=False)
