"""A producer that dies at any step: what was enqueued is there once, and the next producers are not affected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.buffer import Manifest
from penstock.buffer.locations import is_data_name
from penstock.buffer.manifest.ownership import OWNER
from penstock.storage import LocalStore
from tests.buffer.processes.stop_points import (
    HANDLE_COMPLETED,
    MANIFEST_CREATED,
    MANIFEST_NOT_WRITTEN,
    MANIFEST_READ,
    MANIFEST_WRITTEN,
    OBJECT_WRITTEN,
    OWNER_CLAIMED,
    Stop,
    drain,
    kill_at,
    produce_and_stop,
    produce_one,
)
from tests.support.processes import Start

# In their order, with what is there then: the owner, a data object, a manifest that names it.
STEPS = {
    MANIFEST_READ: (False, False, False),
    MANIFEST_CREATED: (False, False, False),
    OWNER_CLAIMED: (True, False, False),
    OBJECT_WRITTEN: (True, True, False),
    MANIFEST_NOT_WRITTEN: (True, True, False),
    MANIFEST_WRITTEN: (True, True, True),
    HANDLE_COMPLETED: (True, True, True),
}

NUMBERS = [1, 4, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 3, 5, 6))]


# A buffer that is there already is not created again, nor is its prefix claimed.
CASES = [
    *[pytest.param(stop, []) for stop in STEPS],
    *[
        pytest.param(stop, [b"before"], marks=pytest.mark.slow)
        for stop in STEPS
        if stop not in (OWNER_CLAIMED, MANIFEST_CREATED)
    ],
]


@pytest.mark.parametrize(("stop", "before"), CASES, ids=str)
def test_after_a_killed_producer_the_next_ones_entry_arrives_and_the_victims_once_or_not_at_all(
    stop: Stop, before: list[bytes], tmp_path: Path, start: Start
) -> None:
    has_owner, has_object, is_enqueued = STEPS[stop]
    for entry in before:
        produce_one(tmp_path, entry)
    kill_at(stop, tmp_path, start, [b"victim"])

    names = [meta.path.removeprefix("ingest/") for meta in LocalStore(tmp_path).list_objects()]
    assert (OWNER in names) == (has_owner or bool(before))
    assert sum(map(is_data_name, names)) == len(before) + has_object
    assert len(Manifest.read(tmp_path).entries) == len(before) + is_enqueued

    sequence = produce_one(tmp_path, b"next")
    expected = [*before, *([b"victim"] if is_enqueued else []), b"next"]
    assert sequence == len(expected) - 1
    assert drain(tmp_path) == [(place, [entry]) for place, entry in enumerate(expected)]


@pytest.mark.slow
def test_a_producer_killed_at_any_step_of_the_disk_while_it_writes_the_manifest_enqueues_or_does_not(
    tmp_path: Path, start: Start
) -> None:
    steps: list[str] = []
    recording = LocalStore(tmp_path / "unharmed", step=steps.append)
    version = recording.put("ingest/manifest", b"old")
    steps.clear()
    recording.put_if_match("ingest/manifest", b"new", version)

    outcomes = []
    for step in steps:
        root = tmp_path / step
        produce_one(root, b"before")
        kill_at(Stop("at", "put_if_match", "/manifest", step=step), root, start, [b"victim"])
        outcomes.append(len(Manifest.read(root).entries) == 2)
        produce_one(root, b"next")
        expected = [b"before", b"victim", b"next"] if outcomes[-1] else [b"before", b"next"]
        assert drain(root) == [(place, [entry]) for place, entry in enumerate(expected)], step
    # The outcome changes once, where the new manifest is moved into place.
    assert outcomes == [number >= steps.index("moved") for number in range(len(steps))]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_producer_killed_with_one_object_unfinished_and_all_others_written_enqueues_none_behind_it(
    number: int, tmp_path: Path, start: Start
) -> None:
    entries = [b"%d" % number for number in range(40)]
    unfinished, last = replace(OBJECT_WRITTEN, occurrence=number), replace(OBJECT_WRITTEN, occurrence=len(entries))
    victim = start(produce_and_stop, str(tmp_path), entries, len(entries), unfinished, last)
    assert {victim.hear(), victim.hear()} == {unfinished, last}
    victim.kill()

    received = drain(tmp_path)
    assert received == [(place, [entry]) for place, entry in enumerate(entries[: len(received)])]
    assert len(received) < number + 3  # four objects are written at the same time


@pytest.mark.parametrize("number", NUMBERS)
def test_a_producer_killed_between_two_enqueues_leaves_the_first_ones_and_no_gap(
    number: int, tmp_path: Path, start: Start, manifest: str
) -> None:
    entries = [b"%d" % number for number in range(40)]
    # On version 2 a producer keeps the head of its last write and does not read again: it stops before its write.
    # On version 1 it has read the manifest three times before: when it was opened, and twice to create the buffer.
    is_read = manifest == "opendata"
    between, before = (MANIFEST_READ, 3) if is_read else (MANIFEST_NOT_WRITTEN, 0)
    kill_at(replace(between, occurrence=before + number), tmp_path, start, entries, together=5)

    received = drain(tmp_path)
    assert received == [(place, [entry]) for place, entry in enumerate(entries[: len(received)])]
    assert len(received) >= number - 1
