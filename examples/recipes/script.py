"""Produce the lines of a file: script.py FILE BUFFER. Its exit status is 0 if, and only if, all of them are durable."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from penstock import Producer


def end(number: int, frame: FrameType | None) -> None:
    """Leave the `with` block, which flushes what was produced."""
    sys.exit(128 + number)


def main(file: str, buffer: str) -> None:
    signal.signal(signal.SIGTERM, end)
    events = 0
    with open(file, "rb") as lines, Producer(buffer) as producer:
        for line in lines:
            producer.produce(line.rstrip(b"\n"))
            events += 1
    print(f"{events} events are durable")  # leaving the block has flushed, or raised


if __name__ == "__main__":
    main(*sys.argv[1:])
