"""The loop runs while thousands publish to a log on a slow store, and one reads from it."""

from __future__ import annotations

import asyncio

import pytest

from penstock.metalog import MetadataRecord, ObjectMetadataLog, PartitionStart
from penstock.storage import open_store
from tests.support.loop_gap import LONGEST_GAP_SECONDS, LoopGap, SlowOnce, all_of


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_collector")
def test_thousands_of_publishes_and_a_reader_on_a_slow_store_let_the_loop_run(fresh_name: str) -> None:
    async def main() -> None:
        store = SlowOnce(open_store(f"memory://{fresh_name}"), skip=10)
        records = list[MetadataRecord | None]()
        async with ObjectMetadataLog(store, 1) as log:
            with log.subscribe([PartitionStart(0)]) as subscription:

                async def read() -> None:
                    while len(records) < 5000:
                        records.append(await subscription.poll_async(None))

                async with LoopGap() as gap:
                    reading = asyncio.ensure_future(read())
                    await all_of(lambda number: log.publish_async(0, b"%d" % number), 5000)
                    assert await log.high_water_marks_async() == [5000]
                    await reading
        assert gap.longest < LONGEST_GAP_SECONDS
        assert [one.offset for one in records if one is not None] == list(range(5000))
        assert store.was_slow

    asyncio.run(main())
