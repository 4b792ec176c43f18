"""Damaged files of a durable queue: a flipped bit, an early end, a file that is gone or of another time.

Every event that was pushed and not acked is there, with its bytes, or opening the queue raises that it is damaged.
No id is given twice.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import pytest

from penstock import DurableEventQueue
from penstock.errors import CorruptData, InvalidInput, OutcomeUnknown, StorageError
from penstock.queue.log_file import framed, intact_records
from tests.queue.damage import MARK, Killed, copy, cut, data_files, event, flip, killed, log_of
from tests.queue.rocksdb_calls import SYNCS, flush_after_sync, replace_calls
from tests.support.codecs import RefusingCodec
from tests.support.queue_folder import Place

PUSHED = 1000


def push_only(killed_queue: Killed, queue: DurableEventQueue[bytes]) -> None:
    for number in range(PUSHED):
        killed_queue.push(queue, event(number))


def push_and_ack(killed_queue: Killed, queue: DurableEventQueue[bytes]) -> None:
    """What an ordinary queue has seen: pushes, acks of the oldest and of others, tables and a log."""
    killed_queue.push(queue, *map(event, range(30)))
    with pytest.MonkeyPatch.context() as patch:
        replace_calls(patch, SYNCS, flush_after_sync)
        killed_queue.ack(queue, range(10))
    for number in range(30, 60):
        killed_queue.push(queue, event(number))
    killed_queue.ack(queue, [10, 11, 40, 59])
    killed_queue.push(queue, *map(event, range(60, 70)))


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The files of a queue with a thousand events, all in its log, whose process was killed."""
    return killed(tmp_path_factory.mktemp("pushes") / "queue", push_only)


@pytest.fixture(scope="module", params=["killed", pytest.param("closed", marks=pytest.mark.chaos)])
def ordinary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The files of a queue with tables and a log."""
    path = tmp_path_factory.mktemp("ordinary") / "queue"
    return killed(path, push_and_ack, is_closed=request.param == "closed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue"


# Flipped bits


def test_a_flipped_bit_in_the_middle_of_the_log_never_hides_the_events_behind_it(pushes: Killed, path: Path) -> None:
    flip(log_of(pushes.copy_to(path)), 8 * (log_of(path).stat().st_size // 2))
    with pytest.raises(CorruptData, match=re.escape(f"the queue in {path} is damaged: it")):
        DurableEventQueue(path)
    report = pushes.is_repaired(path)
    assert (report.kept, report.lost_at_least, report.lost_at_most) == (PUSHED - 1, 1, 1)
    assert report.last_id == PUSHED - 1


def test_a_flipped_length_that_points_past_the_end_of_the_log_is_not_taken_for_a_torn_write(
    pushes: Killed, path: Path
) -> None:
    """RocksDB opens it in every mode, and ends before it."""
    log = log_of(pushes.copy_to(path))
    last = log.read_bytes().rindex(b"event %d: " % (PUSHED - 1))
    header = last - 1 - 8 - 1 - 1 - 12 - 7  # before the value: its length, the key, its length and kind, two headers
    flip(log, 8 * (header + 5) + 6)
    with pytest.raises(CorruptData, match=f": 1 event is missing: ids up to {PUSHED - 1} were given"):
        DurableEventQueue(path)


@pytest.mark.parametrize("name", ["the log", "the list of files"])
def test_a_record_of_a_kind_that_rocksdb_would_read_for_ever_is_damage(name: str, ordinary: Killed, path: Path) -> None:
    """One bit makes of a whole record one of an older log: RocksDB holds the interpreter's lock, and never returns."""
    ordinary.copy_to(path)
    file = log_of(path) if name == "the log" else next(path.glob("MANIFEST-*"))
    data = file.read_bytes()
    second = 7 + int.from_bytes(data[4:6], "little")
    assert data[6] == data[second + 6] == 1
    flip(file, 8 * (second + 6) + 2)
    with pytest.raises(CorruptData, match=f"its file {file.name} has a damaged record"):
        DurableEventQueue(path)
    ordinary.is_repaired(path)


def every_bit(killed_queue: Killed) -> list[tuple[str, int]]:
    return [
        (name, bit)
        for name in data_files(killed_queue.path)
        for bit in range(8 * (killed_queue.path / name).stat().st_size)
    ]


def check_flips(killed_queue: Killed, path: Path, bits: list[tuple[str, int]]) -> int:
    """Flip each of these bits of a queue that is whole; return how many of them were refused."""
    refused = 0
    for name, bit in bits:
        flip(killed_queue.copy_to(path) / name, bit)
        refused += not killed_queue.opens_with_all_or_is_refused(path)
    return refused


def test_a_flipped_bit_in_any_file_hides_nothing_and_repeats_no_id(ordinary: Killed, path: Path) -> None:
    dice = random.Random(1)
    files = {name: [bit for bit in every_bit(ordinary) if bit[0] == name] for name in data_files(ordinary.path)}
    few = [dice.choice(bits) for bits in files.values()]
    of_data = [bit for name, bits in files.items() if name.endswith((".log", ".sst")) for bit in dice.sample(bits, 3)]
    assert check_flips(ordinary, path, few + of_data) > len(of_data) // 2


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_each_flipped_bit_hides_nothing_and_repeats_no_id(ordinary: Killed, path: Path) -> None:
    bits = [one for one in every_bit(ordinary) if not one[0].startswith(("OPTIONS", "IDENTITY"))]
    dice = random.Random(2)
    assert check_flips(ordinary, path, dice.sample(bits, 5000)) > 1000


def test_what_remains_after_a_flipped_bit_can_be_repaired(ordinary: Killed, path: Path) -> None:
    dice = random.Random(3)
    for name in [*ordinary.path.glob("*.log"), *ordinary.path.glob("*.sst"), *ordinary.path.glob("MANIFEST*")]:
        flip(ordinary.copy_to(path) / name.name, dice.randrange(8 * name.stat().st_size))
        if not ordinary.opens_with_all_or_is_refused(path):
            ordinary.is_repaired(path)


# Files that end early, or are gone


def check_cuts(killed_queue: Killed, path: Path, cuts: list[tuple[str, int]]) -> None:
    for name, size in cuts:
        cut(killed_queue.copy_to(path) / name, size)
        killed_queue.opens_with_all_or_is_refused(path)


def test_a_file_that_ends_early_hides_nothing_and_repeats_no_id(ordinary: Killed, path: Path) -> None:
    dice = random.Random(4)
    sizes = {name: (ordinary.path / name).stat().st_size for name in data_files(ordinary.path)}
    check_cuts(
        ordinary,
        path,
        [(name, cut) for name, size in sizes.items() if size for cut in {0, dice.randrange(size), size - 1}],
    )


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_log_that_ends_at_any_length_hides_nothing_and_repeats_no_id(ordinary: Killed, path: Path) -> None:
    sizes = {name: (ordinary.path / name).stat().st_size for name in data_files(ordinary.path)}
    logs = [(name, cut) for name, size in sizes.items() if name.endswith(".log") for cut in range(size)]
    lists = [(name, cut) for name, size in sizes.items() if name.startswith("MANIFEST") for cut in range(size)]
    check_cuts(ordinary, path, random.Random(5).sample(logs, min(len(logs), 3000)) + lists)


@pytest.mark.parametrize("kept", [400, 0], ids=["a log that ends early", "a log that is gone"])
def test_the_number_of_missing_events_is_reported(pushes: Killed, path: Path, kept: int) -> None:
    log = log_of(pushes.copy_to(path))
    if kept:
        cut(log, log.read_bytes().rindex(b"event %d: " % kept))
    else:
        log.unlink()
    given = f": ids up to 999 were given, .* those up to {kept - 1}" if kept else ""
    with pytest.raises(CorruptData, match=f"{PUSHED - kept:,} events are missing{given}"):
        DurableEventQueue(path)
    report = pushes.is_repaired(path)
    assert (report.kept, report.lost_at_least, report.lost_at_most) == (kept, PUSHED - kept, PUSHED - kept)
    assert report.missing_ids == ((kept, PUSHED - 1),)


def test_each_file_can_be_lost_and_the_rest_can_be_repaired(ordinary: Killed, path: Path) -> None:
    for name in data_files(ordinary.path):
        (ordinary.copy_to(path) / name).unlink()
        if not ordinary.opens_with_all_or_is_refused(path):
            ordinary.is_repaired(path)


def test_a_table_that_the_list_of_files_does_not_name_is_found_again(ordinary: Killed, path: Path) -> None:
    (manifest,) = ordinary.path.glob("MANIFEST-*")
    records = list(intact_records(manifest.read_bytes()))
    for count in reversed(range(len(records))):
        (ordinary.copy_to(path) / manifest.name).write_bytes(framed(records[:count]))
        for log in set(path.glob("*.log")) - {log_of(path)}:
            log.unlink()  # all of its events are in the table
        if not ordinary.opens_with_all_or_is_refused(path):
            break
    assert ordinary.is_repaired(path).lost_at_most == 0


def test_a_log_lost_between_others_is_noticed_though_as_many_acked_events_came_back(tmp_path: Path) -> None:
    """The number of events is right, and they are not the right ones."""
    path = tmp_path / "queue"
    with DurableEventQueue(path, clock=lambda: 0.0) as queue:
        queue.push_many(map(event, range(20)))
    place = Place(path, lazy=True)
    with place.raw() as raw:  # as if a log with these had been lost: acks of 0 to 4, pushes of 15 to 19
        for number in range(15, 20):
            del raw[number.to_bytes(8)]
            raw[(number + 100).to_bytes(8)] = b"later"
    with place.raw("totals") as family:
        raw_totals = bytearray(family[b"totals"] or b"")
        raw_totals[16:24] = (120).to_bytes(8)
        family[b"totals"] = bytes(raw_totals)
    with pytest.raises(CorruptData, match="events are not those that were pushed and not acked"):
        DurableEventQueue(path)


# The mark


def test_a_mark_that_is_gone_is_damage_and_everything_else_is_kept(ordinary: Killed, path: Path) -> None:
    (ordinary.copy_to(path) / MARK).unlink()
    with pytest.raises(CorruptData, match=f"its file {MARK} is missing"):
        DurableEventQueue(path)
    report = ordinary.is_repaired(path)
    assert (report.kept, report.lost_at_most) == (len(ordinary.live), None)


def test_a_mark_has_two_slots_and_one_of_them_is_enough(ordinary: Killed, path: Path) -> None:
    for slot in (0, 4096):
        flip(ordinary.copy_to(path) / MARK, 8 * (slot + 30))
        assert ordinary.opens_with_all_or_is_refused(path)
    for slot in (0, 4096):
        flip((path if slot else ordinary.copy_to(path)) / MARK, 8 * (slot + 30))
    with pytest.raises(CorruptData, match=f"its file {MARK} cannot be read"):
        DurableEventQueue(path)


def test_a_mark_of_another_queue_is_damage(ordinary: Killed, path: Path, tmp_path: Path) -> None:
    other = killed(tmp_path / "other", push_and_ack)
    shutil.copy(other.path / MARK, ordinary.copy_to(path) / MARK)
    with pytest.raises(CorruptData, match="that of another queue"):
        DurableEventQueue(path)


def test_a_mark_of_an_older_copy_lets_the_queue_open(tmp_path: Path) -> None:
    killed_queue = killed(tmp_path / "old", push_and_ack)
    new = killed_queue.copy_to(tmp_path / "new")
    with DurableEventQueue(new) as queue:
        killed_queue.push(queue, b"later")
        killed_queue.ack(queue, [30, 31])
    shutil.copy(tmp_path / "old" / MARK, new / MARK)
    assert killed_queue.opens_with_all_or_is_refused(new)


@pytest.mark.parametrize(
    ("pushed", "error", "reported"),
    [
        (5, r"3 to 5 events are missing: ids up to 74 were given, .*; 2 acks are missing", (3, 5, 2)),
        (0, "2 acks are missing, so up to 2 events would come again", (0, 0, 2)),
    ],
    ids=["pushes and acks are missing", "only acks are missing"],
)
def test_an_older_database_beside_a_newer_mark_is_damage(
    tmp_path: Path, pushed: int, error: str, reported: tuple[int, int, int]
) -> None:
    killed_queue = killed(tmp_path / "old", push_and_ack)
    new = killed_queue.copy_to(tmp_path / "new")
    with DurableEventQueue(new) as queue:
        if pushed:
            killed_queue.push(queue, *[b"later"] * pushed)
        killed_queue.ack(queue, [30, 31])
    shutil.copy(new / MARK, tmp_path / "old" / MARK)
    with pytest.raises(CorruptData, match=error):
        DurableEventQueue(tmp_path / "old")
    report = killed_queue.is_repaired(tmp_path / "old")
    assert (report.lost_at_least, report.lost_at_most, report.again_at_most) == reported


def test_a_database_that_is_gone_is_not_made_anew_beside_its_mark(ordinary: Killed, path: Path) -> None:
    for file in ordinary.copy_to(path).iterdir():
        if not file.name.startswith("penstock"):
            file.unlink()
    with pytest.raises(CorruptData, match="cannot be opened"):
        DurableEventQueue(path)
    assert ordinary.is_repaired(path).lost_at_least == len(ordinary.live)


def test_a_copy_of_a_queue_is_a_queue(ordinary: Killed, tmp_path: Path) -> None:
    assert ordinary.opens_with_all_or_is_refused(ordinary.copy_to(tmp_path / "elsewhere"))


def test_a_mark_that_cannot_be_written_fails_the_push_and_nothing_is_kept_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space killed_queue on device")

    with place.open() as queue:
        queue.push_many([b"a", b"b"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refuse)
            with pytest.raises(OutcomeUnknown, match="No space killed_queue on device"):
                queue.push(b"c")
            with pytest.raises(StorageError):
                queue.ack(0)
        assert queue.push(b"d").id == 2
    with place.open() as queue:
        assert [event.event for event in queue.iterate()][-2:] == [b"b", b"d"]


def test_a_write_that_is_undone_after_the_mark_had_it_is_not_missed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C after the mark is written and before memory has it: the events are not reported, and are deleted."""
    real = os.pwrite

    def write_and_stop(descriptor: int, data: bytes, offset: int) -> int:
        real(descriptor, data, offset)
        monkeypatch.setattr(os, "pwrite", real)
        raise KeyboardInterrupt

    with place.open() as queue:
        queue.push(b"a")
        monkeypatch.setattr(os, "pwrite", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            queue.push_many([b"b", b"c"])
        copied = Place(copy(place.path, place.path.with_name("copied")), lazy=place.lazy)
    for one in (place, copied):
        with one.open() as queue:
            assert queue.push(b"d").id == 1


# Opening all the same


def test_a_damaged_queue_opens_when_it_may_skip_what_is_corrupt(
    pushes: Killed, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(log_of(pushes.copy_to(path)), 50_000)
    with DurableEventQueue(path, skip_corrupt=True) as queue:
        count = len(queue)
        assert 0 < count < PUSHED
        assert queue.push(b"next").id >= PUSHED
    assert f"{PUSHED - count:,} lost (of the ids {count} to {PUSHED - 1})" in caplog.text
    with DurableEventQueue(path) as queue:
        assert len(queue) == count + 1


def test_a_whole_queue_that_may_skip_what_is_corrupt_is_left_as_it_is(ordinary: Killed, path: Path) -> None:
    with DurableEventQueue(ordinary.copy_to(path), skip_corrupt=True) as queue:
        assert queue.push(b"next").id == ordinary.next_id
    assert list(path.glob("damaged-*")) == []


def test_a_path_with_control_characters_is_shown_without_them(tmp_path: Path) -> None:
    path = tmp_path / "out\x1b[31m\nbox"
    DurableEventQueue(path).close()
    (path / MARK).unlink()
    with pytest.raises(CorruptData) as raised:
        DurableEventQueue(path)
    assert str(raised.value).isprintable()


def test_the_error_of_a_codec_is_shown_without_control_characters(place: Place) -> None:
    class Quoting(RefusingCodec):
        def decode(self, data: bytes, /) -> bytes:
            raise ValueError(f"what is {data.decode()}?")

    queue = place.holding(b"\x1b[2J\n").open(codec=Quoting())
    with pytest.raises(CorruptData) as raised:
        queue.pop()
    assert str(raised.value).isprintable()
    with pytest.raises(InvalidInput):
        queue.nack("no id")  # type: ignore[arg-type]
