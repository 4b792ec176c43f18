"""Coroutines beside threads: one event a call, by 16 tasks of one loop and by 16 threads, into a buffer in memory."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

from bench.side_by_side import Contest, show
from penstock import Producer

CALLS = 480_000
CALLERS = 16
EVENT = b'{"user": 7, "page": "/products/1", "took": 12}'

_numbers = itertools.count()


def by_tasks(size: int) -> None:
    async def main() -> None:
        async with Producer(_fresh()) as producer:

            async def produce() -> None:
                for _ in range(size // CALLERS):
                    await producer.produce_async(EVENT)

            await asyncio.gather(*(produce() for _ in range(CALLERS)))

    asyncio.run(main())


def by_threads(callers: int) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Producer(_fresh()) as producer:

            def produce() -> None:
                for _ in range(size // callers):
                    producer.produce(EVENT)

            threads = [threading.Thread(target=produce) for _ in range(callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    return work


def _fresh() -> str:
    return f"memory://bench-coroutines-{next(_numbers)}"


def run() -> None:
    ways = {
        "produce_async, 16 tasks": by_tasks,
        "produce, 16 threads": by_threads(CALLERS),
        "produce, 1 thread": by_threads(1),
    }
    show("Coroutines", [Contest("produce one event a call", CALLS, ways, " calls/s")])
