"""A Ctrl-C at every function that a run goes through, one after the other: whatever it hits, nothing is lost."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

import penstock
from penstock import Consumer, DurableEventQueue, Record, open_store
from penstock.engine import (
    BatchEngine,
    BufferReceiver,
    EngineConfig,
    MemoryGuard,
    MemoryTransport,
    QueueReceiver,
    Receiver,
)
from penstock.errors import CommitFailed
from tests.engine.doubles import Sink, regulated, through
from tests.engine.sources import plant
from tests.support.filled_buffers import fill, kept, no_gc
from tests.support.interrupts import Interrupts
from tests.support.waiting import Background

PAYLOADS = [b"0", b"1"]  # two blocks
TRANSPORTS = "engine/transports"
LOOP = ("engine/block_loop.py", "engine/batch_engine.py", "engine/regulation/inbound.py", "engine/regulation/guard.py")
FILES = {  # in all files with the memory transport, which is the quickest; with the others in what is theirs
    "memory": ("",),
    "queue": ("queue/durable.py", f"{TRANSPORTS}/queue.py", *LOOP),
    "buffer": ("buffer/consumer/", f"{TRANSPORTS}/buffer_receiver.py", f"{TRANSPORTS}/fetch_ahead.py", *LOOP),
}


def interrupt(number: int, event: str, files: tuple[str, ...]) -> Interrupts:
    """One at the nth entry of a function in these files, or, for `event="return"`, at its return.

    At a return, what a `with` at the end of the function held is released, and the caller has nothing yet.
    """
    places = tuple(f"{penstock.__path__[0]}/{file}" for file in files)

    def is_place(frame: FrameType, happened: str) -> bool:
        frame.f_trace_lines = False
        # A generator is also entered when it is discarded, where an exception is lost.
        return happened == event and not frame.f_code.co_flags & inspect.CO_GENERATOR

    return Interrupts(number, lambda file: file.startswith(places), is_place)


@dataclass
class Source:
    """A receiver, what it has not committed, and how to close it."""

    receiver: Receiver
    uncommitted: Callable[[], int]
    close: Callable[[], object]


class Sources:
    """Makes a source for each interrupt."""

    def __init__(self, kind: str, place: Path, name: str) -> None:
        self.make = {"memory": self._memory, "queue": self._queue, "buffer": self._buffer}[kind]
        self._place = place
        self._name = name
        self._numbers = itertools.count()
        self._open: DurableEventQueue[bytes] | None = None

    def discard(self) -> None:
        """Close the queue after harm was found: the next interrupt gets a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _memory(self) -> Source:
        transport = MemoryTransport()
        transport.send(map(Record, PAYLOADS))
        return Source(transport, lambda: len(PAYLOADS) - 1 - (transport.committed_sequence or 0), transport.close)

    def _queue(self) -> Source:
        if self._open is None:  # one for all that go well, which leave it empty: to open one takes time
            self._open = DurableEventQueue(self._place / str(next(self._numbers)))
        queue = self._open
        queue.push_many(PAYLOADS)
        receiver = QueueReceiver(queue)
        return Source(receiver, queue.__len__, receiver.close)

    def _buffer(self) -> Source:
        store = open_store(f"memory://{self._name}-{next(self._numbers)}")
        plant(store, *([payload] for payload in PAYLOADS))
        receiver = BufferReceiver(Consumer(store, no_gc()), fetchers=1)
        return Source(receiver, lambda: len(kept(store)), receiver.close)


def harm_of(source: Source, interrupts: Interrupts) -> list[str]:
    """Run up to the interrupt, then run again, and return what is wrong."""
    guard, sink, wrong = MemoryGuard(1 << 30), Sink(), list[str]()
    engine = BatchEngine(EngineConfig(max_records=1, recv_timeout=0), regulation=regulated(guard))

    def run() -> object:
        return engine.run(source.receiver, through, sink, until_idle=True)

    interrupts.during(run)
    if guard.current_bytes:
        wrong.append(f"{guard.current_bytes} bytes are leased")
    try:
        Background(run).result()
    except Exception as error:
        wrong.append(f"the next run failed: {error!r}")
    if set(sink.values) != set(PAYLOADS):
        wrong.append(f"only {sink.values} were sunk")
    if uncommitted := source.uncommitted():
        wrong.append(f"{uncommitted} are not committed")
    source.close()
    return wrong


@pytest.mark.parametrize("event", ["call", "return"])
@pytest.mark.parametrize("kind", FILES)
def test_a_run_loses_nothing_wherever_it_was_interrupted(
    kind: str, event: str, tmp_path: Path, fresh_name: str
) -> None:
    sources = Sources(kind, tmp_path, fresh_name)
    harm: list[str] = []
    for number in itertools.count():
        interrupts = interrupt(number, event, FILES[kind])
        wrong = harm_of(sources.make(), interrupts)
        if wrong:
            harm.append(f"after an interrupt at {interrupts.place}: {', '.join(wrong)}")
            sources.discard()
        if interrupts.place is None:
            break
    sources.discard()
    assert not harm, "\n".join(harm)
    assert number > 30


@pytest.mark.parametrize("event", ["call", "return"])
def test_a_commit_after_an_interrupt_acks_nothing_that_was_not_delivered(event: str, fresh_name: str) -> None:
    """A buffer's ack is cumulative: that of a later batch would take along one that was forgotten."""
    lost: list[str] = []
    for number in itertools.count():
        store, sink = open_store(f"memory://{fresh_name}-{number}"), Sink()
        plant(store, *([payload] for payload in PAYLOADS))
        receiver = BufferReceiver(Consumer(store, no_gc()), fetchers=1)
        engine = BatchEngine(EngineConfig(max_records=1, recv_timeout=0))
        interrupts = interrupt(number, event, ("buffer/consumer/",))
        interrupts.during(lambda: engine.run(receiver, through, sink, until_idle=True))  # noqa: B023
        fill(store, [b"later"])
        with suppress(CommitFailed):
            engine.run(receiver, through, sink, until_idle=True)
        receiver.close()
        acked = range(len(PAYLOADS) + 1 - len(kept(store)))
        if gone := {[*PAYLOADS, b"later"][sequence] for sequence in acked} - set(sink.values):
            lost.append(f"{gone} after an interrupt at {interrupts.place}")
        if interrupts.place is None:
            break
    assert not lost, "\n".join(lost)
    assert number > 10
