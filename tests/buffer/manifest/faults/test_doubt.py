"""What version 1 cannot tell: an enqueue whose entries are dequeued before it looks. It appends again, and counts."""

from __future__ import annotations

import pytest

from penstock.testing import Fault
from tests.buffer.manifest.faults.recording import State
from tests.buffer.manifest.faults.scene import Scene, Seen
from tests.buffer.manifest.faults.test_enqueue import LATER, enqueue

MANIFESTS = ["opendata"]  # version 2 knows its writers: `test_evidence.py`


@pytest.mark.parametrize(
    ("fault", "expected"),
    {
        Fault.ERROR_AFTER: Seen({"a": 2}, 2, 0, State(1, 2, ("a",)), doubts=1),
        Fault.APPLIED_THEN_CONFLICT: Seen({"a": 2}, 2, 1, State(1, 2, ("a",)), doubts=1),
    }.items(),
)
def test_everything_is_dequeued_before_the_manifest_is_read_again(scene: Scene, fault: Fault, expected: Seen) -> None:
    scene.others_enqueue("z")
    scene.third_party = scene.others_consume

    assert scene.see(enqueue(scene, "a"), fault, Fault.THIRD_PARTY_AFTER) == expected


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_a_group_that_is_dequeued_already_is_appended_again_and_counted_once_an_entry(
    scene: Scene, fault: Fault
) -> None:
    scene.third_party = scene.others_consume

    seen = scene.see(enqueue(scene, "a", "b", "c"), fault, Fault.THIRD_PARTY_AFTER)

    assert (seen.answer, seen.there, seen.doubts) == ({"a": 3, "b": 4, "c": 5}, State(1, 3, ("a", "b", "c")), 3)


def test_what_did_not_happen_is_in_doubt_too_once_its_place_was_given_and_dequeued(scene: Scene) -> None:
    def third_party() -> None:
        scene.others_enqueue("other")
        scene.others_consume()

    scene.third_party = third_party

    seen = scene.see(enqueue(scene, "a"), Fault.ERROR_BEFORE, Fault.THIRD_PARTY_AFTER)

    assert seen == Seen({"a": 1}, 2, 0, State(1, 1, ("a",)), doubts=1)


@pytest.mark.parametrize("fault", [Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT])
def test_the_evidence_is_looked_at_before_the_pause_in_which_it_could_be_dequeued(scene: Scene, fault: Fault) -> None:
    scene.others_enqueue("z")
    scene.during_pause = scene.others_consume

    seen = scene.see(enqueue(scene, "a"), fault)

    assert (seen.answer, seen.there, seen.doubts) == ({"a": 1}, LATER, 0)
