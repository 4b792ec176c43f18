"""On version 2: rules for the floor that are almost right, and lose data in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import msgspec
import pytest

from penstock.buffer import ConsumerConfig, GarbageCollector
from penstock.buffer.collector.collector import Cycle
from penstock.buffer.collector.times import CycleTimes, floor_for
from penstock.buffer.descriptors import NewEntry
from penstock.buffer.locations import Names
from penstock.buffer.manifest.state import Rewrite
from penstock.buffer.manifest.time_ranges import RangesToClose
from penstock.buffer.manifest.v2.head import Head
from penstock.buffer.manifest.v2.queue import NativeQueue, NativeView
from penstock.storage import ObjectStore
from tests.buffer.collector.conditions import LEAPING_CLOCKS, PAUSED_FOR_HOURS, WRONG_CLOCKS, Conditions
from tests.buffer.collector.simulation import Clock, Rules, first_loss
from tests.buffer.manifest.wrong_rules import (
    ClosesWhatIsNamed,
    ClosesWhatTheTailDoesNotName,
    DeletesAtOnce,
    DeletesTheFutureByAge,
    NamesWhatIsBelow,
    WithoutFloor,
)

MANIFESTS = ["native"]


def collecting(kind: type[GarbageCollector]) -> Rules:
    def make(store: ObjectStore, config: ConsumerConfig, clock: Clock) -> GarbageCollector:
        return kind(store, config, clock=clock)

    return Rules(collector=make)


class LooksAtTheTailOnly(GarbageCollector):
    """Sets a floor that is below the tail only, as if everything in segments were acked."""

    def _close_times(
        self, later: int, to_close: RangesToClose, view: NativeView, times: CycleTimes, cycle: Cycle
    ) -> None:
        queue = self._queue.native
        if queue is not None:
            latest = times.now() - times.grace
            queue.close_times(lambda head: _below_the_tail(head, latest), lambda _: (), times.now)


def _below_the_tail(head: Head, latest: int) -> int:
    """A floor that is below the tail, and may be above what is in segments."""
    return floor_for(head.changed(segments=()), latest)


@pytest.mark.parametrize("conditions", [WRONG_CLOCKS, PAUSED_FOR_HOURS], ids=["wrong clocks", "long pauses"])
@pytest.mark.parametrize("kind", [WithoutFloor, DeletesAtOnce])
def test_a_collector_that_sets_no_floor_loses_data(kind: type[GarbageCollector], conditions: Conditions) -> None:
    assert first_loss(conditions, collecting(kind))


@pytest.mark.parametrize("kind", [DeletesTheFutureByAge, ClosesWhatIsNamed, ClosesWhatTheTailDoesNotName])
def test_a_collector_that_closes_or_deletes_names_of_the_far_future_too_early_loses_data(
    kind: type[GarbageCollector],
) -> None:
    assert first_loss(LEAPING_CLOCKS, collecting(kind))


def test_an_enqueue_that_does_not_look_at_the_closed_ranges_loses_data() -> None:
    real = NativeQueue._nameable

    def of_the_floor_only(
        queue: NativeQueue, head: Head, entries: Sequence[NewEntry], rewrite: Rewrite
    ) -> Sequence[NewEntry]:
        return real(queue, msgspec.structs.replace(head, closed=()), entries, rewrite)

    with patch.object(NativeQueue, "_nameable", of_the_floor_only):
        assert first_loss(LEAPING_CLOCKS, Rules())


def test_a_floor_that_does_not_look_at_segments_loses_data() -> None:
    assert first_loss(PAUSED_FOR_HOURS, collecting(LooksAtTheTailOnly))


@pytest.mark.parametrize("conditions", [WRONG_CLOCKS, PAUSED_FOR_HOURS], ids=["wrong clocks", "long pauses"])
def test_an_enqueue_that_does_not_look_at_the_floor_loses_data(conditions: Conditions) -> None:
    with patch.object(NativeQueue, "_nameable", NamesWhatIsBelow._nameable):
        assert first_loss(conditions, Rules())


def test_objects_that_are_written_again_under_a_name_by_the_clock_alone_lose_data() -> None:
    real = Names.ulid

    def by_the_clock(names: Names, floor: int = 0) -> str:
        return real(names)

    with patch.object(Names, "ulid", by_the_clock):
        assert first_loss(WRONG_CLOCKS, Rules())
