"""On version 2: every rule for the floor that is almost right loses data in the model."""

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
from tests.buffer.collector.model import Clock, Rules, Run, runs
from tests.buffer.collector.weather import CROOKED, LEAPING, PAUSED, Weather
from tests.buffer.manifest.wrong_rules import (
    ClosesWhatIsNamed,
    ClosesWhatTheTailDoesNotName,
    DeletesAtOnce,
    DeletesTheFutureByAge,
    NamesWhatIsBelow,
    WithoutFloor,
)

MANIFESTS = ["native"]
ENOUGH = range(600)  # in which a wrong rule has to show


def first_loss(weather: Weather, rules: Rules) -> Run | None:
    return next((run for run in runs(ENOUGH, weather, rules) if run.lost), None)


def collecting(kind: type[GarbageCollector]) -> Rules:
    def make(store: ObjectStore, config: ConsumerConfig, clock: Clock) -> GarbageCollector:
        return kind(store, config, clock=clock)

    return Rules(collector=make)


class LooksAtTheTailOnly(GarbageCollector):
    """Takes what is in segments for read: sets a floor that is below the tail, and no more."""

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


@pytest.mark.parametrize("weather", [CROOKED, PAUSED], ids=["crooked clocks", "long pauses"])
@pytest.mark.parametrize("kind", [WithoutFloor, DeletesAtOnce])
def test_a_collector_that_sets_no_floor_loses_data(kind: type[GarbageCollector], weather: Weather) -> None:
    assert first_loss(weather, collecting(kind))


@pytest.mark.parametrize("kind", [DeletesTheFutureByAge, ClosesWhatIsNamed, ClosesWhatTheTailDoesNotName])
def test_a_collector_that_takes_what_is_dated_far_ahead_for_dead_loses_data(kind: type[GarbageCollector]) -> None:
    assert first_loss(LEAPING, collecting(kind))


def test_an_enqueue_that_does_not_look_at_the_closed_ranges_loses_data() -> None:
    real = NativeQueue._nameable

    def of_the_floor_only(
        queue: NativeQueue, head: Head, entries: Sequence[NewEntry], rewrite: Rewrite
    ) -> Sequence[NewEntry]:
        return real(queue, msgspec.structs.replace(head, closed=()), entries, rewrite)

    with patch.object(NativeQueue, "_nameable", of_the_floor_only):
        assert first_loss(LEAPING, Rules())


def test_a_floor_that_does_not_look_at_segments_loses_data() -> None:
    assert first_loss(PAUSED, collecting(LooksAtTheTailOnly))


@pytest.mark.parametrize("weather", [CROOKED, PAUSED], ids=["crooked clocks", "long pauses"])
def test_an_enqueue_that_does_not_look_at_the_floor_loses_data(weather: Weather) -> None:
    with patch.object(NativeQueue, "_nameable", NamesWhatIsBelow._nameable):
        assert first_loss(weather, Rules())


def test_objects_that_are_written_again_under_a_name_by_the_clock_alone_lose_data() -> None:
    real = Names.ulid

    def by_the_clock(names: Names, floor: int = 0) -> str:
        return real(names)

    with patch.object(Names, "ulid", by_the_clock):
        assert first_loss(CROOKED, Rules())
