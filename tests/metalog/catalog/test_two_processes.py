"""Catalogs in several processes on one log."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

from penstock.errors import InvalidTransition
from penstock.metalog import (
    ObjectMetadataLog,
    PartitionStart,
    SegmentCatalog,
    SegmentMetadata,
    SegmentState,
    TopicIdPartition,
    decode_event,
)
from penstock.metalog.catalog.segment_view import SegmentView
from tests.metalog.catalog.events import DELETING, FINISHED, segment, update
from tests.support.processes import PATIENCE, Parent, Start, let_go

TPS = [TopicIdPartition(UUID(int=topic), "t", topic) for topic in range(3)]
SEGMENTS = [(tp, number) for tp in TPS for number in range(12)]


def race(parent: Parent, where: Path, state: SegmentState, seed: int) -> tuple[set[int], list[list[SegmentMetadata]]]:
    """Bring all segments into a state, in some order; which could be brought there, and what there is at the end."""
    order = random.Random(seed).sample(range(len(SEGMENTS)), len(SEGMENTS))
    done = set()
    with (
        ObjectMetadataLog(str(where), 2, poll_interval=0.01) as log,
        SegmentCatalog(log, snapshot_dir=None) as catalog,
    ):
        catalog.assign([0, 1])
        for tp, number in SEGMENTS:
            catalog.add_segment(segment(number, 10 * number, 10 * number + 9, tp=tp))
        parent.tell("ready")
        parent.wait()
        for at in order:
            tp, number = SEGMENTS[at]
            try:
                catalog.update_segment(update(number, state, tp))
                done.add(at)
            except InvalidTransition:
                pass
        parent.tell("done")
        for partition, mark in enumerate(parent.wait()):
            catalog.wait_for(partition, mark - 1, PATIENCE)
        return done, [catalog.segments(tp) for tp in TPS]


def test_catalogs_that_race_agree_on_what_the_log_says(tmp_path: Path, start: Start) -> None:
    children = [start(race, tmp_path, FINISHED, 1), start(race, tmp_path, DELETING, 2)]
    let_go(children)
    for child in children:
        child.hear()
    with ObjectMetadataLog(str(tmp_path), 2) as log:
        marks = log.high_water_marks()
        for child in children:
            child.tell(marks)
        view, finished = SegmentView(), set()
        with log.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
            for _ in range(sum(marks)):
                event = decode_event(next(records).payload)
                try:
                    changed = view.apply(event)
                except InvalidTransition:
                    continue
                if changed and event.state is FINISHED:
                    finished.add(event)
    (done_first, first), (done_second, second) = [child.answer() for child in children]
    assert first == second == [view.segments(tp) for tp in TPS]
    assert done_second == set(range(len(SEGMENTS))), "a segment can be deleted in every state"
    assert done_first == {at for at, (tp, number) in enumerate(SEGMENTS) if update(number, FINISHED, tp) in finished}
