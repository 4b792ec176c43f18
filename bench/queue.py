"""The durable queue on this machine's disk, every write synced; events of 100 bytes, and of 1 KiB where it says so.

Beside it stand the least that could be done by hand (`os.write` and `os.fdatasync` on one file), persist-queue's
`SQLiteAckQueue` and litequeue. Both of these are SQLite with a write-ahead log, and both run with `synchronous=FULL`,
which syncs each commit: persist-queue leaves it at SQLite's default, FULL in most builds; litequeue sets NORMAL, under
which a power cut takes the last commits back. Each does the work as well as its API lets it:

- From many threads: persist-queue has a lock around its one writing connection. litequeue's connection may be shared
  by threads that put (SQLite serializes them), which was no slower than one for each.
- Many at once: litequeue puts them in one of its transactions. persist-queue commits each `put`, and has no other way.
- Take and ack: both write down that an event was taken. Penstock has that in memory, so theirs is not synced here
  (`synchronous=NORMAL` meanwhile); their acks are. litequeue acks a block in one transaction, persist-queue one by one.
  Both then delete what was acked, as an ack of Penstock does. They have 1,000 events, Penstock 20,000: litequeue sorts
  all that are ready for each one it takes.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from litequeue import LiteQueue
from persistqueue import SQLiteAckQueue

from bench.side_by_side import ROUNDS, Contest, show
from penstock import DurableEventQueue

SMALL, LARGE = 100, 1024
LIST = 1000
THREADS = 16
MANY = 20_000
STORED = 300_000
SHORT_ROUNDS = 25  # of a fraction of a second: a disk changes its pace from one second to the next

Work = Callable[[int], None]


def events(count: int, size: int) -> list[bytes]:
    rest = random.Random(0)
    heads = (b'{"user": %08d, "page": "/products/%06d", "session": "' % (n, n % 9973) for n in range(count))
    return [(head + rest.randbytes(size).hex().encode())[: size - 2] + b'"}' for head in heads]


def one_by_one(push: Callable[[Any], object], some: Sequence[object]) -> Work:
    def work(size: int) -> None:
        for number in range(size):
            push(some[number % LIST])

    return work


def from_threads(work: Work) -> Work:
    def all_of_them(size: int) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, [size // THREADS] * THREADS))

    return all_of_them


def in_lists(push_many: Callable[[Any], object], some: Sequence[object]) -> Work:
    def work(size: int) -> None:
        for _ in range(size // LIST):
            push_many(some)

    return work


def taken_and_acked(queues: Iterable[DurableEventQueue[bytes]]) -> Work:
    full = iter(queues)

    def work(size: int) -> None:
        queue = next(full)
        for _ in range(size // LIST):
            queue.ack_many([event.id for _ in range(LIST) if (event := queue.pop())])
        assert queue.is_empty

    return work


def taken_and_acked_in_persist_queue(queues: Iterable[SQLiteAckQueue]) -> Work:
    full = iter(queues)

    def work(size: int) -> None:
        queue = next(full)
        _set_synchronous(queue._putter, "NORMAL")
        ids = [queue.get(block=False, raw=True)["pqid"] for _ in range(size)]
        _set_synchronous(queue._putter, "FULL")
        for identifier in ids:
            queue.ack(id=identifier)
        queue.clear_acked_data(max_delete=size, keep_latest=0)
        assert queue.active_size() == queue.acked_count() == 0

    return work


def taken_and_acked_in_litequeue(queues: Iterable[LiteQueue]) -> Work:
    full = iter(queues)

    def work(size: int) -> None:
        queue = next(full)
        _set_synchronous(queue.conn, "NORMAL")
        ids = [queue.pop().message_id for _ in range(size)]
        _set_synchronous(queue.conn, "FULL")
        with queue.transaction():
            for identifier in ids:
                queue.done(identifier)
            queue.prune()
        assert queue.qsize() == 0

    return work


def opened(place: Path, *, lazy: bool) -> Work:
    def work(size: int) -> None:
        with DurableEventQueue(place, lazy=lazy) as queue:
            assert len(queue) == size

    return work


class Bench:
    """Queues and files in new directories below `root`, closed with `stack`; and the contests between them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        self._stack = stack

    def push(self, size: int) -> Contest:
        some = events(LIST, size)
        return Contest(
            f"push {size:,} bytes",
            300,
            {
                "Penstock": one_by_one(self._penstock().push, some),
                "write and fdatasync": one_by_one(self._file(), some),
                "persist-queue": one_by_one(self._persist_queue().put, some),
                "litequeue": one_by_one(self._litequeue().put, _as_text(some)),
            },
            rounds=SHORT_ROUNDS,
        )

    def push_from_threads(self) -> Contest:
        some = events(LIST, SMALL)
        persist_queue = self._persist_queue(multithreading=True)
        fewer = THREADS * 25
        return Contest(
            f"push from {THREADS} threads",
            THREADS * 200,
            {
                "Penstock": from_threads(one_by_one(self._penstock().push, some)),
                "Penstock, one thread": one_by_one(self._penstock().push, some),
                "write and fdatasync, one thread": one_by_one(self._file(), some),
                "persist-queue": from_threads(one_by_one(persist_queue.put, some)),
                "litequeue": from_threads(one_by_one(self._litequeue().put, _as_text(some))),
            },
            rounds=SHORT_ROUNDS,
            fewer={
                "Penstock, one thread": fewer,
                "write and fdatasync, one thread": fewer,
                "persist-queue": fewer,
                "litequeue": fewer,
            },
        )

    def push_many(self) -> Contest:
        some = events(LIST, SMALL)
        append, put, litequeue = self._file(), self._persist_queue().put, self._litequeue()

        def put_in_one_transaction(data: list[str]) -> None:
            with litequeue.transaction():
                for one in data:
                    litequeue.put(one)

        return Contest(
            f"push {LIST:,} at once",
            MANY,
            {
                "Penstock": in_lists(self._penstock().push_many, some),
                "write and fdatasync": in_lists(lambda data: append(b"".join(data)), some),
                "persist-queue, one by one": one_by_one(put, some),
                "litequeue": in_lists(put_in_one_transaction, _as_text(some)),
            },
            " events/s",
            fewer={"persist-queue, one by one": LIST, "litequeue": 5 * LIST},
        )

    def take_and_ack(self) -> Contest:
        """Each round has queues of its own, filled before."""
        some, text = events(LIST, SMALL), _as_text(events(LIST, SMALL))
        rounds = range(ROUNDS + 1)

        def full_litequeue() -> LiteQueue:
            queue = self._litequeue()
            with queue.transaction():
                for one in text:
                    queue.put(one)
            return queue

        def full_persist_queue() -> SQLiteAckQueue:
            queue = self._persist_queue()
            one_by_one(queue.put, some)(LIST)
            return queue

        def full_penstock(*, lazy: bool) -> DurableEventQueue[bytes]:
            return self._stack.enter_context(DurableEventQueue(self._filled(MANY), lazy=lazy))

        return Contest(
            f"take and ack, {LIST:,} at a time",
            MANY,
            {
                "Penstock, lazy": taken_and_acked([full_penstock(lazy=True) for _ in rounds]),
                "Penstock, eager": taken_and_acked([full_penstock(lazy=False) for _ in rounds]),
                "persist-queue": taken_and_acked_in_persist_queue([full_persist_queue() for _ in rounds]),
                "litequeue": taken_and_acked_in_litequeue([full_litequeue() for _ in rounds]),
            },
            " events/s",
            fewer={"persist-queue": LIST, "litequeue": LIST},
        )

    def open(self) -> Contest:
        place = self._filled(STORED)
        ways = {"Penstock, lazy": opened(place, lazy=True), "Penstock, eager": opened(place, lazy=False)}
        return Contest(f"open (and close) {STORED:,} events", STORED, ways, " events/s")

    def _penstock(self) -> DurableEventQueue[bytes]:
        return self._stack.enter_context(DurableEventQueue(self._fresh("penstock")))

    def _filled(self, count: int) -> Path:
        place = self._fresh("penstock")
        with DurableEventQueue(place) as queue:
            in_lists(queue.push_many, events(LIST, SMALL))(count)
        return place

    def _persist_queue(self, *, multithreading: bool = False) -> SQLiteAckQueue:
        queue = SQLiteAckQueue(str(self._fresh("persist-queue")), multithreading=multithreading)
        _set_synchronous(queue._putter, "FULL")  # there is no public way to its connection
        return self._stack.enter_context(closing(queue))

    def _litequeue(self) -> LiteQueue:
        queue = LiteQueue(self._fresh("litequeue") / "queue")
        _set_synchronous(queue.conn, "FULL")
        return self._stack.enter_context(closing(queue))

    def _file(self) -> Callable[[bytes], None]:
        file = os.open(self._fresh("file") / "events", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._stack.callback(os.close, file)

        def append(data: bytes) -> None:
            os.write(file, data)
            os.fdatasync(file)

        return append

    def _fresh(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self._root))


def _set_synchronous(connection: Any, mode: str) -> None:
    connection.execute(f"PRAGMA synchronous={mode}")


def _as_text(some: list[bytes]) -> list[str]:
    """What litequeue takes: its messages are text."""
    return [one.decode() for one in some]


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        bench = Bench(Path(name), stack)
        contests = [
            bench.push(SMALL),
            bench.push(LARGE),
            bench.push_from_threads(),
            bench.push_many(),
            bench.take_and_ack(),
            bench.open(),
        ]
        show("The durable queue, on a local disk, synced", contests)
