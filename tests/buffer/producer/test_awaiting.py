"""A handle can be awaited, and a producer used by `async with`."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from penstock import ObjectStore, Producer, ProducerConfig, WriteHandle, Written
from penstock.errors import Closed, StorageError
from tests.buffer.producer.conftest import NewGate, OpenProducer
from tests.support.buffer_contents import entries
from tests.support.filled_buffers import each_alone
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE
from tests.support.waiting import Gate


class Held(NamedTuple):
    """A handle whose data object is not written before the gate is open."""

    handle: WriteHandle
    gate: Gate


@pytest.fixture
def held(memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate) -> Held:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    return Held(open_producer(store, flush_size_bytes=1).produce(b"x"), gate)


def refuse() -> None:
    raise StorageError("the disk is full")


def test_awaiting_a_handle_returns_its_sequence(store: ObjectStore) -> None:
    async def work() -> list[Written]:
        async with Producer(store, each_alone()) as producer:
            return [await producer.produce(given) for given in (b"a", b"b")]

    written = asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert [one.sequence for one in written] == [0, 1]


def test_several_can_await_one_handle(held: Held) -> None:
    handle, gate = held

    async def wait() -> Written:
        return await handle

    async def work() -> list[Written]:
        waiting = [asyncio.create_task(wait()) for _ in range(5)]
        await asyncio.sleep(0)  # every task has begun to wait
        gate.open()
        return await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)

    assert asyncio.run(work()) == [handle.result(PATIENCE)] * 5


def test_awaiting_does_not_hold_up_the_loop(held: Held) -> None:
    handle, gate = held

    async def open_the_gate() -> None:
        gate.open()

    async def work() -> Written:
        opening = asyncio.create_task(open_the_gate())  # it runs only if the loop does, while the handle is awaited
        written = await handle
        await opening
        return written

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE)).sequence == 0


def test_a_handle_can_be_awaited_when_it_is_done_already(memory: ObjectStore, open_producer: OpenProducer) -> None:
    producer = open_producer(memory)
    handle = producer.produce(b"x")
    producer.flush()

    async def work() -> list[Written]:
        return [await handle, await handle]

    assert asyncio.run(asyncio.wait_for(work(), PATIENCE)) == [handle.result()] * 2


@pytest.mark.parametrize("when", ["before it failed", "after it failed"])
def test_awaiting_raises_the_error(
    memory: ObjectStore, open_producer: OpenProducer, new_gate: NewGate, when: str
) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)
    store.before("write data", refuse)
    handle = open_producer(store, flush_size_bytes=1).produce(b"x")

    async def work() -> None:
        if when == "after it failed":
            gate.open()
            with pytest.raises(StorageError):
                await asyncio.to_thread(handle.result, PATIENCE)
        else:
            asyncio.get_running_loop().call_soon(gate.open)
        with pytest.raises(StorageError, match="the disk is full"):
            await handle

    asyncio.run(asyncio.wait_for(work(), PATIENCE))


def test_a_cancelled_await_disturbs_neither_the_batch_nor_other_awaits(held: Held) -> None:
    handle, gate = held

    async def wait() -> Written:
        return await handle

    problems: list[object] = []

    async def work() -> Written:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        cancelled, kept = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.open()
        return await asyncio.wait_for(kept, PATIENCE)

    assert asyncio.run(work()) == handle.result(PATIENCE)
    assert problems == []


def test_awaiting_with_a_timeout_does_not_end_the_write(held: Held) -> None:
    handle, gate = held

    async def work() -> Written:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)
        gate.open()
        return await asyncio.wait_for(handle, PATIENCE)

    assert asyncio.run(work()).sequence == 0


def test_a_loop_that_is_closed_before_the_batch_is_done_disturbs_no_other(held: Held) -> None:
    handle, gate = held

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.01)

    async def stay() -> Written:
        asyncio.get_running_loop().call_soon(gate.open)
        return await asyncio.wait_for(handle, PATIENCE)

    asyncio.run(give_up())
    assert asyncio.run(stay()).sequence == 0


def test_handles_can_be_awaited_in_many_loops(memory: ObjectStore, open_producer: OpenProducer) -> None:
    handle = open_producer(memory, flush_size_bytes=1).produce(b"x")

    async def work() -> Written:
        return await asyncio.wait_for(handle, PATIENCE)

    assert asyncio.run(work()) == asyncio.run(work())


def test_async_with_flushes_and_closes(store: ObjectStore) -> None:
    async def work() -> Producer:
        async with Producer(store, ProducerConfig(flush_interval=3600)) as producer:
            producer.produce(b"x")
        return producer

    producer = asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert entries(store) == [b"x"]
    with pytest.raises(Closed):
        producer.produce(b"y")


def test_async_with_does_not_hold_up_the_loop_while_it_closes(memory: ObjectStore, new_gate: NewGate) -> None:
    store, gate = HookedStore(memory), new_gate()
    store.before("write data", gate, times=1)

    async def open_the_gate() -> None:
        gate.open()

    async def work() -> None:
        async with Producer(store, each_alone()) as producer:
            producer.produce(b"x")
            opening = asyncio.create_task(open_the_gate())
        await opening

    asyncio.run(asyncio.wait_for(work(), PATIENCE))
    assert entries(memory) == [b"x"]


@pytest.mark.parametrize("error", [LookupError("the first error"), None], ids=["within", "of the close"])
def test_async_with_raises_the_first_error_within_it_or_of_its_close(
    memory: ObjectStore, error: LookupError | None
) -> None:
    store = HookedStore(memory)
    store.before("write data", refuse)

    async def work() -> None:
        async with Producer(store, ProducerConfig(flush_interval=3600)) as producer:
            producer.produce(b"x")
            if error is not None:
                raise error

    expected, message = (StorageError, "the disk is full") if error is None else (LookupError, "the first error")
    with pytest.raises(expected, match=message):
        asyncio.run(asyncio.wait_for(work(), PATIENCE))
