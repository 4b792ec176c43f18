"""A service that crashes: what it had pushed is there when it starts again, and is handed on then."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from penstock import DurableEventQueue
from penstock.queue import MsgspecCodec


class Order(msgspec.Struct):
    number: int
    customer: str


def serve(outbox: Path) -> None:
    """Take orders, hand some of them on, and crash."""
    queue = DurableEventQueue(outbox, codec=MsgspecCodec(Order))
    for number in range(5):
        queue.push(Order(number, "ann"))  # on disk from here on
    while event := queue.pop():
        if event.event.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)  # popped, and not finished
        queue.ack(event.id)


def main(outbox: Path) -> None:
    service = multiprocessing.get_context("spawn").Process(target=serve, args=(outbox,))
    service.start()
    service.join()
    print("the service was killed by the signal", -(service.exitcode or 0))
    with DurableEventQueue(outbox, codec=MsgspecCodec(Order)) as queue:
        print("not handed on yet:", [waiting.event.number for waiting in queue.iterate()])
        while event := queue.pop():
            queue.ack(event.id)
        print("left:", len(queue), "and the next order gets the id", queue.push(Order(5, "bob")).id)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-example-")))
