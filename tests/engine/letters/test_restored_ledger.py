"""A ledger of replays that is older than what the buffer has of it, as after a restore: no letter is lost silently."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Record, open_store, peek
from penstock.buffer import DEFAULT_GROUP, Groups, Writers
from penstock.engine import Filter, Ledger, Replay, Replayed, Target, open_letters, to_files
from penstock.errors import CorruptData
from tests.engine.letters.stores import letters


def put(top: Path, *payloads: bytes) -> None:
    with to_files(top / "letters") as route:
        route(letters(*payloads))


def replay(top: Path) -> Replayed:
    place = open_letters(str(top / "letters"))
    assert place is not None
    return Replay(place, Target(open_store(top / "events"), "ingest/manifest")).run(Filter())


def events(top: Path) -> list[bytes]:
    return [record.value for record in peek(top / "events", 100)]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    Groups(tmp_path / "events").create("audit")
    return tmp_path


def write_plan(top: Path) -> None:
    """Plan the last letter, as a run that is killed before its append does."""
    place = open_letters(str(top / "letters"))
    assert place is not None
    target, letter = Target(open_store(top / "events"), "ingest/manifest"), list(place.letters())[-1]
    Ledger(place.notes()).write(1, target.id, target.url, [letter.id], [Record(letter.payload or b"")])


@pytest.mark.parametrize("is_acked", [False, True], ids=["queued", "acked"])
@pytest.mark.parametrize("behind", [1, 2])
def test_letters_are_not_marked_by_a_ledger_that_was_restored_from_a_copy(
    behind: int, is_acked: bool, top: Path
) -> None:
    notes, copy = top / ".letters.replays", top / "copy"
    put(top, b"0")
    replay(top)
    shutil.copytree(notes, copy)
    lost = [b"lost %d" % number for number in range(behind)]
    for payload in lost:
        put(top, payload)
        replay(top)
    shutil.rmtree(notes)
    shutil.copytree(copy, notes)
    put(top, b"new")
    before = events(top)
    for group in (DEFAULT_GROUP, "audit") if is_acked else ():
        with Consumer(top / "events", ConsumerConfig(group=group)) as consumer:
            for batch in consumer:
                batch.ack()
    assert events(top) == ([] if is_acked else before)
    plans = sorted((notes / "plans").iterdir())

    for _ in range(2):
        with pytest.raises(CorruptData, match=r"the replays noted in .*\.letters\.replays are fewer than") as raised:
            replay(top)
    assert before == [b"0", *lost]
    assert sorted((notes / "plans").iterdir()) == plans

    [writer] = Writers(top / "events").list()
    assert f"penstock writers drop file://{top / 'events'} {writer}" in str(raised.value)
    Writers(top / "events").drop(writer)
    assert replay(top).replayed == 1 + behind
    assert sorted(events(top)) == sorted([*([] if is_acked else before), *lost, b"new"])


@pytest.mark.parametrize("behind", [1, 2])
def test_a_plan_under_a_number_that_the_buffer_has_of_another_is_not_done(behind: int, top: Path) -> None:
    notes, copy = top / ".letters.replays", top / "copy"
    put(top, b"0")
    replay(top)
    shutil.copytree(notes, copy)
    for number in range(behind):
        put(top, b"lost %d" % number)
        replay(top)
    shutil.rmtree(notes)
    shutil.copytree(copy, notes)
    put(top, b"new")
    write_plan(top)

    before = events(top)
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"the replays noted in .*\.letters\.replays are fewer than"):
            replay(top)
    assert events(top) == before
    [writer] = Writers(top / "events").list()
    Writers(top / "events").drop(writer)
    assert replay(top).finished == 1
    assert events(top)[behind + 1] == b"new"


def test_two_copies_of_a_place_with_its_ledger_lose_no_letter_of_each_other(top: Path) -> None:
    put(top, b"0")
    replay(top)
    for name in ("letters", ".letters.replays"):
        shutil.copytree(top / name, top / "copy" / name)
    put(top, b"1")
    assert replay(top).replayed == 1
    put(top / "copy", b"2")
    place = open_letters(str(top / "copy" / "letters"))
    assert place is not None
    with pytest.raises(CorruptData, match=r"penstock writers drop"):
        Replay(place, Target(open_store(top / "events"), "ingest/manifest")).run(Filter())
    assert events(top) == [b"0", b"1"]
