"""`make bench`: every benchmark, or the ones named (`python -m bench storage`)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench import (
    against_kafka,
    buffer,
    collector,
    coroutines,
    engine,
    growth,
    kafka,
    metalog,
    parsing,
    queue,
    spark,
    start,
    storage,
    tables,
)

BENCHMARKS: dict[str, Callable[[], None]] = {
    "start": start.run,
    "storage": storage.run,
    "buffer": buffer.run,
    "coroutines": coroutines.run,
    "kafka": kafka.run,
    "growth": growth.run,
    "collector": collector.run,
    "queue": queue.run,
    "metalog": metalog.run,
    "parsing": parsing.run,
    "engine": engine.run,
    "spark": spark.run,
    "tables": tables.run,
    "against_kafka": against_kafka.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
