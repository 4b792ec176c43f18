"""The awaitable twins of a metadata log: the contract of the blocking methods, and what a cancelled task leaves."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Closed, PartitionOutOfRange
from penstock.metalog import InProcessMetadataLog, MetadataLog, MetadataRecord, ObjectMetadataLog, PartitionStart
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.twins import Twins


def test_what_is_published_has_its_offset_and_is_read(call: Twins, log: MetadataLog) -> None:
    assert [call(log.publish, 1, b"%d" % number) for number in range(3)] == [0, 1, 2]
    assert call(log.high_water_marks) == [0, 3, 0]
    with log.subscribe([PartitionStart(1)]) as records:
        assert [call(records.poll, 10.0) for _ in range(3)] == [MetadataRecord(1, at, b"%d" % at) for at in range(3)]
        assert call(records.poll, 0.01) is None


def test_a_partition_that_is_not_there_is_refused(call: Twins, log: MetadataLog) -> None:
    with pytest.raises(PartitionOutOfRange):
        call(log.publish, 3, b"x")
    assert call(log.high_water_marks) == [0, 0, 0]


def test_a_closed_log_refuses(call: Twins, log: MetadataLog) -> None:
    with call.within(log):
        call(log.publish, 0, b"x")
    with pytest.raises(Closed):
        call(log.publish, 0, b"y")
    call(log.close)


@pytest.mark.parametrize("kind", ["in-process", "object"])
def test_a_cancelled_call_publishes_whole_or_not_and_loses_no_record(kind: str, fresh_name: str) -> None:
    async def main() -> None:
        log = InProcessMetadataLog(1) if kind == "in-process" else ObjectMetadataLog(f"memory://{fresh_name}", 1)
        async with log:
            tried, offsets, read = 0, list[int](), list[bytes]()

            async def publish() -> int:
                nonlocal tried
                tried += 1
                return await log.publish_async(0, b"%d" % tried)

            def published(outcome: Outcome[int]) -> None:
                offsets.extend([] if outcome.answer is None else [outcome.answer])

            await cancel_at_each_suspension(publish, published)
            end = (await log.high_water_marks_async())[0]
            assert offsets
            assert set(offsets) <= set(range(end))
            assert end <= tried
            with log.subscribe([PartitionStart(0)]) as records:

                def note(outcome: Outcome[MetadataRecord | None]) -> None:
                    read.extend([] if outcome.answer is None else [outcome.answer.payload])

                while len(read) < end:
                    await cancel_at_each_suspension(lambda: records.poll_async(0.05), note)
            assert len(set(read)) == len(read) == end

    asyncio.run(main())
