"""On version 2: rules for the floor that are almost right, and lose data in a simulation."""

from __future__ import annotations

import pytest

from penstock.buffer.manifest.formats import Formats
from penstock.buffer.manifest.v2.collecting import NativeCollecting
from penstock.buffer.manifest.v2.state import NativeState
from tests.buffer.collector.conditions import LEAPING_CLOCKS, PAUSED_FOR_HOURS, WRONG_CLOCKS, Conditions
from tests.buffer.collector.simulation import Rules, first_loss
from tests.buffer.manifest import wrong_rules
from tests.buffer.manifest.world import SMALL
from tests.buffer.manifest.wrong_rules import (
    ClosesWhatIsNamed,
    ClosesWhatTheTailDoesNotName,
    DeletesAtOnce,
    DeletesTheFutureByAge,
    LooksAtTheTailOnly,
    NamesWhatIsBelow,
    NamesWhatIsClosed,
    WithoutFloor,
)

MANIFESTS = ["native"]


def with_state(state: type[NativeState]) -> Rules:
    return Rules(formats=Formats(native=state, limits=SMALL))


def collecting(kind: type[NativeCollecting]) -> Rules:
    return with_state(wrong_rules.collecting(kind))


@pytest.mark.parametrize("conditions", [WRONG_CLOCKS, PAUSED_FOR_HOURS], ids=["wrong clocks", "long pauses"])
@pytest.mark.parametrize("kind", [WithoutFloor, DeletesAtOnce])
def test_a_collector_that_sets_no_floor_loses_data(kind: type[NativeCollecting], conditions: Conditions) -> None:
    assert first_loss(conditions, collecting(kind))


@pytest.mark.parametrize("kind", [DeletesTheFutureByAge, ClosesWhatIsNamed, ClosesWhatTheTailDoesNotName])
def test_a_collector_that_closes_or_deletes_names_of_the_far_future_too_early_loses_data(
    kind: type[NativeCollecting],
) -> None:
    assert first_loss(LEAPING_CLOCKS, collecting(kind))


def test_an_enqueue_that_does_not_look_at_the_closed_ranges_loses_data() -> None:
    assert first_loss(LEAPING_CLOCKS, with_state(NamesWhatIsClosed))


def test_a_floor_that_does_not_look_at_segments_loses_data() -> None:
    assert first_loss(PAUSED_FOR_HOURS, collecting(LooksAtTheTailOnly))


@pytest.mark.parametrize("conditions", [WRONG_CLOCKS, PAUSED_FOR_HOURS], ids=["wrong clocks", "long pauses"])
def test_an_enqueue_that_does_not_look_at_the_floor_loses_data(conditions: Conditions) -> None:
    assert first_loss(conditions, with_state(NamesWhatIsBelow))
