"""A process that has a queue, and does with it what a test asks over a pipe, until it is killed."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnknownEvent
from penstock.queue import DurableEventQueue
from tests.support.processes import Parent

READ_AHEAD_BYTES = {True: 400, False: 1 << 20}  # of a window that is crossed all the time, and of the default one


def host(parent: Parent, path: str) -> None:
    """Open queues one after another, and do with them what is asked, until killed."""
    queue: DurableEventQueue[bytes] | None = None
    while True:
        name, *args = parent.wait()
        if name == "open":
            lazy, is_narrow = args
            queue = DurableEventQueue(path, lazy=lazy, read_ahead_bytes=READ_AHEAD_BYTES[is_narrow])
            parent.tell(None)
            continue
        assert queue is not None
        parent.tell(_answer(queue, name, args))


def _answer(queue: DurableEventQueue[bytes], name: str, args: list[Any]) -> Any:
    match name:
        case "state":
            return len(queue), queue.ready_len(), queue.is_empty, queue.approximate_len()
        case "iterate":
            return [(event.id, event.event) for event in queue.iterate()]
        case "push_many":
            return [event.id for event in queue.push_many(args[0])]
        case "nack":
            try:
                return queue.nack(args[0])
            except UnknownEvent:
                return "unknown"
    answer = getattr(queue, name)(*args)
    if name == "push":
        return answer.id
    return None if answer is None else (answer.id, answer.event)
