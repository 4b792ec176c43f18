"""Processes that fork while they have a producer, and use it in the child."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from penstock import Producer, ProducerConfig, WriteHandle, Written, open_store
from tests.support.buffer_contents import entries
from tests.support.processes import Parent, in_forked_child
from tests.support.waiting import NEVER, Gate


async def _await(handle: WriteHandle) -> Written:
    return await handle


def _leave_context(producer: Producer) -> None:
    with producer:
        pass


USES: dict[str, Callable[[Producer, WriteHandle], object]] = {
    "produce": lambda producer, _: producer.produce(b"x"),
    "produce a list": lambda producer, _: producer.produce([b"x"]),
    "produce with a timeout": lambda producer, _: producer.produce(b"x", timeout=1),
    "produce_json": lambda producer, _: producer.produce_json({}),
    "flush": lambda producer, _: producer.flush(),
    "close": lambda producer, _: producer.close(),
    "with": lambda producer, _: _leave_context(producer),
    "result": lambda _, handle: handle.result(),
    "result with a timeout": lambda _, handle: handle.result(1),
    "await": lambda _, handle: asyncio.run(_await(handle)),
}


def use_after_a_fork(parent: Parent, place: str, use: str, state: str) -> tuple[str, list[bytes]]:
    """Use a producer in a forked child; return what that raised there, and the entries in the buffer at the end.

    `state` at the time of the fork: a batch is open, or done, or the producer's lock is held.
    """
    gate = Gate()
    is_held_up = False

    def clock() -> float:
        if is_held_up:
            gate()
        return 1.0

    producer = Producer(place, ProducerConfig(flush_interval=NEVER), clock=clock)
    handle = producer.produce(b"before")
    if state == "done":
        producer.flush()
    is_held_up = state == "while locked"
    producing = threading.Thread(target=lambda: producer.produce(b"meanwhile"))
    if is_held_up:
        producing.start()
        gate.wait_for_arrival()
    raised = in_forked_child(lambda: USES[use](producer, handle))
    gate.open()
    if is_held_up:
        producing.join()
    producer.produce(b"after")
    producer.close()
    return raised, entries(open_store(place))


def produce_anew_after_a_fork(parent: Parent, place: str) -> tuple[str, list[bytes]]:
    """Open a new producer in a forked child, as the error advises."""

    def work() -> None:
        with Producer(place) as anew:
            anew.produce(b"child")

    with Producer(place, ProducerConfig(flush_interval=NEVER)) as producer:
        producer.produce(b"parent")
        raised = in_forked_child(work)
    return raised, entries(open_store(place))
