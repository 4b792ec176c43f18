"""An `async for` that is cancelled or dropped: it takes nothing, and no thread stays behind."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref

import pytest

from penstock.metalog import InProcessMetadataLog, MetadataLog, MetadataRecord, PartitionStart, Subscription
from tests.metalog.conftest import Backend
from tests.metalog.feeds import AnyLog, MeddledFeed
from tests.metalog.reading import expected, fill, no_thread_is_left, soon, take
from tests.support.processes import PATIENCE
from tests.support.waiting import Background, Bell, wait_until


async def turns(count: int) -> None:
    """Let everybody else of this loop have so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("hasty")
def test_a_cancelled_anext_takes_nothing_wherever_it_is_cancelled(backend: Backend) -> None:
    log = backend.open(1)
    count = backend.share(2000)
    dice = random.Random(6)
    outcomes = {"taken": 0, "cancelled": 0}

    async def read(records: Subscription) -> list[MetadataRecord]:
        seen: list[MetadataRecord] = []
        while len(seen) < count:
            taking = asyncio.create_task(anext(records))
            await turns(dice.choice((0, 1, 2, 3, 5, 10, 50)))
            taking.cancel()
            try:
                seen.append(await taking)
                outcomes["taken"] += 1
            except asyncio.CancelledError:
                outcomes["cancelled"] += 1
        return seen

    with no_thread_is_left(), log.subscribe([PartitionStart(0)]) as records:
        publishing = Background(lambda: fill(log, 0, range(count)))
        assert asyncio.run(soon(read(records))) == expected(0, range(count))
        publishing.result()
        assert records.poll(0) is None
    assert outcomes["cancelled"] > 10


@pytest.mark.usefixtures("hasty")
def test_a_cancelled_async_for_has_taken_what_its_body_saw_and_nothing_else(backend: Backend) -> None:
    log = backend.open(1)
    count = backend.share(2000)
    dice = random.Random(66)

    async def read(records: Subscription) -> list[MetadataRecord]:
        seen: list[MetadataRecord] = []

        async def body() -> None:
            async for record in records:
                seen.append(record)
                if len(seen) == count:
                    return

        while len(seen) < count:
            reading = asyncio.create_task(body())
            await turns(dice.randrange(20))
            reading.cancel()
            await asyncio.wait([reading])
        return seen

    with no_thread_is_left(), log.subscribe([PartitionStart(0)]) as records:
        publishing = Background(lambda: fill(log, 0, range(count)))
        assert asyncio.run(soon(read(records))) == expected(0, range(count))
        publishing.result()


def test_a_record_that_comes_together_with_a_cancellation_goes_to_the_next_poll() -> None:
    log = InProcessMetadataLog(3)
    feed = MeddledFeed(log)
    fetching = Bell()
    feed.before_fetch = fetching

    async def cancel_when_it_is_there(records: Subscription) -> None:
        before = set(threading.enumerate())
        waiting = asyncio.create_task(anext(records))
        await turns(1)
        await asyncio.to_thread(fetching.wait)
        (waiter,) = {one for one in set(threading.enumerate()) - before if "metalog-await" in one.name}
        fill(log, 0, range(1))
        waiter.join(PATIENCE)  # it has the record, and this loop has had no turn since: the task does not know yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with no_thread_is_left(), feed.subscribe(PartitionStart(0)) as records:
        asyncio.run(soon(cancel_when_it_is_there(records)))
        assert take(records, 1) == expected(0, [0])


def test_a_loop_that_ends_while_an_anext_waits_leaves_no_thread_and_loses_nothing(log: MetadataLog) -> None:
    async def leave(records: Subscription) -> None:
        waiting = [asyncio.create_task(anext(records)) for _ in range(3)]
        await turns(3)
        assert not any(task.done() for task in waiting)

    fill(log, 1, range(1))
    with no_thread_is_left(), log.subscribe([PartitionStart(0)]) as records:
        asyncio.run(soon(leave(records)))
        fill(log, 0, range(1))
        assert take(records, 1) == expected(0, [0])


def test_a_poll_that_waits_beside_a_cancelled_anext_goes_on(log: MetadataLog) -> None:
    async def cancel(records: Subscription) -> None:
        waiting = asyncio.create_task(anext(records))
        await turns(5)
        waiting.cancel()
        await asyncio.wait([waiting])

    with log.subscribe([PartitionStart(0)]) as records:
        polling = Background(lambda: records.poll(None))
        for _ in range(5):
            asyncio.run(soon(cancel(records)))
        fill(log, 0, range(1))
        assert [polling.result()] == expected(0, [0])


def test_a_busy_async_for_lets_others_of_its_loop_have_a_turn() -> None:
    log = InProcessMetadataLog(1)
    fill(log, 0, range(1000))

    async def read() -> int:
        stop = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(stop.set_result, None)
        seen = 0
        with log.subscribe([PartitionStart(0)]) as records:
            async for _ in records:
                seen += 1
                if stop.done():
                    break
        return seen

    assert asyncio.run(soon(read())) < 200


# A subscription that was dropped


def subscribe(log: AnyLog, *starts: PartitionStart) -> tuple[Subscription, list[weakref.ref[object]]]:
    """A subscription, and references to it and its feed."""
    feed = log.open_feed()
    records = Subscription(feed, log.partition_count, starts)
    return records, [weakref.ref(records), weakref.ref(feed)]


def assert_freed(references: list[weakref.ref[object]]) -> None:
    """Once the threads that still read for a cancelled call have ended."""

    def are_freed() -> bool:
        gc.collect()
        return not any(one() for one in references)

    wait_until(are_freed)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_subscription_that_is_dropped_leaves_nothing(backend: Backend, partitions: int) -> None:
    log = backend.open(partitions)
    fill(log, 0, range(10))

    def use() -> list[weakref.ref[object]]:
        records, references = subscribe(log, *(PartitionStart(at) for at in range(partitions)))
        take(records, 1)
        records.remove(0)
        records.add(PartitionStart(0, 5))
        take(records, 1)
        return references

    use()  # what the log has for all its readers is there now
    before = {name: repr(value) for name, value in vars(log).items()}
    with no_thread_is_left():
        assert_freed(use())
    assert {name: repr(value) for name, value in vars(log).items()} == before
    fill(log, 0, [10])


def test_a_subscription_that_is_dropped_or_closed_gives_its_feed_back() -> None:
    log = InProcessMetadataLog(3)
    closed, dropped = MeddledFeed(log), MeddledFeed(log)
    records = closed.subscribe(PartitionStart(0))
    assert closed.closed == 0
    records.close()
    assert closed.closed == 1
    records = dropped.subscribe(PartitionStart(0))
    assert dropped.closed == 0
    del records
    gc.collect()
    assert dropped.closed == 1


def test_a_feed_is_given_back_after_the_fetch_that_is_under_way() -> None:
    log = InProcessMetadataLog(3)
    feed = MeddledFeed(log)
    fetching = Bell()
    states: list[int] = []
    feed.before_fetch = fetching
    feed.after_fetch = lambda: states.append(feed.closed)
    records = feed.subscribe(PartitionStart(0))
    waiting = Background(lambda: list(records))
    fetching.wait()
    records.close()
    assert feed.closed == 1
    assert states == [0]
    assert waiting.result() == []


def test_a_subscription_that_is_dropped_in_an_async_for_leaves_nothing(backend: Backend) -> None:
    log = backend.open(1)
    fill(log, 0, range(3))
    references: list[weakref.ref[object]] = []

    async def read() -> None:
        records, of_these = subscribe(log, PartitionStart(0))
        references.extend(of_these)
        async for record in records:
            if record.offset == 1:
                return

    async def wait() -> None:
        records, of_these = subscribe(log, PartitionStart(0, 3))
        references.extend(of_these)
        async for _ in records:
            raise AssertionError("there is none")

    async def cancelled() -> None:
        waiting = asyncio.create_task(wait())
        await turns(3)
        waiting.cancel()
        await asyncio.wait([waiting])

    async def dropped() -> None:
        waiting = wait()
        waiting.send(None)
        waiting.close()

    for way in (read, cancelled, dropped):
        with no_thread_is_left():
            asyncio.run(soon(way()))
        assert_freed(references)
    assert len(references) == 6
    fill(log, 0, [3])
