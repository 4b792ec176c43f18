"""The awaitable twins of a catalog: the contract of the blocking methods, and what a cancelled task leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.errors import Closed, InvalidInput, InvalidTransition, NotReady, PartitionOutOfRange
from penstock.metalog import ObjectMetadataLog, SegmentCatalog
from tests.metalog.catalog.events import (
    DELETING,
    FINISHED,
    MARKED,
    STARTED,
    TP,
    WatchedLog,
    deletion,
    in_state,
    publish,
    segment,
    update,
)
from tests.metalog.reading import no_thread_is_left
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.processes import PATIENCE
from tests.support.twins import Twins
from tests.support.waiting import Background


@pytest.fixture
def log() -> WatchedLog:
    return WatchedLog()


@pytest.fixture
def catalog(log: WatchedLog) -> Iterator[SegmentCatalog]:
    with SegmentCatalog(log, snapshot_dir=None) as catalog:
        yield catalog


def test_a_write_is_visible_when_it_returns(call: Twins, catalog: SegmentCatalog) -> None:
    call(catalog.assign, [0])
    call(catalog.add_segment, segment(1))
    assert [one.state for one in call(catalog.segments, TP)] == [STARTED]
    call(catalog.update_segment, update(1, FINISHED))
    found = call(catalog.segment_for, TP, 0, 50)
    assert found is not None
    assert (found.state, call(catalog.highest_offset, TP, 0)) == (FINISHED, 99)
    assert call(catalog.segments_by_epoch, TP, 0) == [found]
    call(catalog.update_segment, update(1, DELETING))
    assert call(catalog.segment_for, TP, 0, 50) is None
    call(catalog.delete_partition, deletion(MARKED))


def test_what_another_process_publishes_is_waited_for(call: Twins, catalog: SegmentCatalog, log: WatchedLog) -> None:
    call(catalog.assign, [0])
    publish(log, *in_state(7, FINISHED))
    call(catalog.wait_for, 0, 1, PATIENCE)
    assert call(catalog.highest_offset, TP, 0) == 799


def test_a_wait_that_is_not_over_in_time_is_not_ready(call: Twins, catalog: SegmentCatalog, log: WatchedLog) -> None:
    with pytest.raises(NotReady, match="is not assigned"):
        call(catalog.wait_for, 0, 0, 0.01)
    log.limit = 1
    call(catalog.assign, [0])
    call(catalog.add_segment, segment(1))
    with pytest.raises(NotReady, match="has applied the offsets below 1"):
        call(catalog.wait_for, 0, 1, 0.01)
    with pytest.raises(NotReady, match="the event is in the log, at offset 1"):
        call(catalog.update_segment, update(1, FINISHED), 0.01)


def test_what_cannot_be_is_refused_at_once(call: Twins, catalog: SegmentCatalog) -> None:
    call(catalog.assign, [0])
    for method, args, error in (
        (catalog.add_segment, (segment(1, state=FINISHED),), InvalidInput),
        (catalog.add_segment, (None,), InvalidInput),
        (catalog.update_segment, (update(1, FINISHED), -1), InvalidInput),
        (catalog.update_segment, (update(1, FINISHED),), InvalidTransition),
        (catalog.wait_for, (1, 0), PartitionOutOfRange),
        (catalog.assign, ([1],), PartitionOutOfRange),
    ):
        with pytest.raises(error):
            call(method, *args)


def test_an_event_that_another_writer_was_quicker_than_is_refused_when_it_is_applied(
    call: Twins, catalog: SegmentCatalog, log: WatchedLog
) -> None:
    log.limit = 1
    call(catalog.assign, [0])
    call(catalog.add_segment, segment(1))
    publish(log, update(1, DELETING))  # this catalog does not see it yet
    log.published.wait(2)
    finishing = Background(lambda: call(catalog.update_segment, update(1, FINISHED), PATIENCE))
    log.published.wait()  # its event is in the log, behind the other
    log.let_through()
    with pytest.raises(InvalidTransition):
        finishing.result()


def test_a_closed_catalog_refuses(call: Twins, log: WatchedLog) -> None:
    with call.within(SegmentCatalog(log, snapshot_dir=None)) as catalog:
        call(catalog.assign, [0])
    for method, *args in (
        (catalog.assign, [0]),
        (catalog.segments, TP),
        (catalog.add_segment, segment(1)),
        (catalog.wait_for, 0, 0),
    ):
        with pytest.raises(Closed):
            call(method, *args)


@pytest.mark.slow
def test_a_close_ends_what_a_coroutine_waits_for(log: WatchedLog) -> None:
    async def main() -> None:
        catalog = SegmentCatalog(log, snapshot_dir=None)
        await catalog.assign_async([0])
        waits = [asyncio.ensure_future(catalog.wait_for_async(0, 5, PATIENCE)) for _ in range(100)]
        await asyncio.sleep(0)
        await catalog.close_async()
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(end) for end in ends} == {Closed}

    with no_thread_is_left():
        asyncio.run(main())


def test_a_cancelled_write_is_in_the_log_or_not_and_can_be_tried_again(fresh_name: str) -> None:
    async def main() -> None:
        async with ObjectMetadataLog(f"memory://{fresh_name}", 1) as log, SegmentCatalog(log, snapshot_dir=None) as one:
            await one.assign_async([0])
            number = 0

            async def add() -> None:
                nonlocal number
                number += 1
                await one.add_segment_async(segment(number, 100 * number, 100 * number + 99))

            async def is_there_when_tried_again(outcome: Outcome[None]) -> None:
                assert outcome.was_cancelled or outcome.error is None, outcome
                await one.add_segment_async(segment(number, 100 * number, 100 * number + 99))
                assert len(await one.segments_async(TP)) == number, outcome

            # The publication suspends each time; the wait for its event, only where that is not applied already.
            assert await cancel_at_each_suspension(add, is_there_when_tried_again) >= 4

    asyncio.run(main())
