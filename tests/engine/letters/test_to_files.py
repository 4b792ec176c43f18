"""`to_files`: rotation, torn lines, disks that refuse, interrupts, and readers beside a writer."""

from __future__ import annotations

import errno
import inspect
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.engine import DeadLetter, DlqPolicy, open_letters, to_files
from penstock.errors import CorruptData, InvalidInput, NotFound, StorageError
from tests.engine.letters.stores import letters, payloads_at, stored_at
from tests.support.interrupts import Interrupts
from tests.support.processes import in_forked_child
from tests.support.waiting import together

MARKER = ".penstock-letters"
SOURCES = (
    "engine/letters/to_files.py",
    "storage/local/lock.py",
    "storage/local/internal_directory.py",
    "local/folder.py",
)


def names_in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name != MARKER)


def ends_in(place: Path) -> list[str]:
    """The ends of the files' names, oldest file first."""
    return [name[name.index(".ndjson") :] for name in names_in(place)]


# --- rotation


def test_a_file_that_is_large_enough_is_sealed_before_the_next_block(tmp_path: Path) -> None:
    with to_files(tmp_path, rotate_bytes=1) as route:
        route(letters(b"1", b"2"))
        assert ends_in(tmp_path) == [".ndjson.open"]
        route(letters(b"3"))
        assert ends_in(tmp_path) == [".ndjson", ".ndjson.open"]
    assert ends_in(tmp_path) == [".ndjson", ".ndjson"]
    assert [path.read_bytes().count(b"\n") for path in sorted(tmp_path.glob("*.ndjson"))] == [2, 1]
    assert payloads_at(tmp_path) == [b"1", b"2", b"3"]


def test_a_file_that_was_open_for_long_enough_is_sealed_before_the_next_block(tmp_path: Path) -> None:
    now = 0.0
    with to_files(tmp_path, rotate_seconds=60, uptime=lambda: now) as route:
        for now in (0.0, 59.0, 60.0, 61.0):
            route(letters(b"%d" % now))
        assert ends_in(tmp_path) == [".ndjson", ".ndjson.open"]
    assert payloads_at(tmp_path) == [b"0", b"59", b"60", b"61"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rotate_bytes": 0}, "rotate_bytes must be an integer, 1 or more, not 0"),
        ({"rotate_bytes": "1m"}, "rotate_bytes must be an integer"),
        ({"rotate_seconds": 0}, "rotate_seconds must be a number of seconds, above 0, not 0"),
    ],
)
def test_limits_that_are_none_are_refused(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=why):
        to_files(tmp_path / "letters", **options)
    assert not (tmp_path / "letters").exists()


def test_a_route_without_letters_leaves_no_file(tmp_path: Path) -> None:
    to_files(tmp_path).close()
    assert names_in(tmp_path) == []
    assert stored_at(tmp_path) == []


def test_a_file_that_is_open_when_its_process_ends_is_sealed(tmp_path: Path) -> None:
    code = "from penstock.engine import *; r = to_files('.'); r([DeadLetter(b'1', 'no')])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ends_in(tmp_path) == [".ndjson"]
    assert payloads_at(tmp_path) == [b"1"]


def test_a_copy_of_a_file_is_no_more_letters(tmp_path: Path) -> None:
    with to_files(tmp_path) as route:
        route(letters(b"1", b"2"))
    [file] = tmp_path.glob("*.ndjson")
    shutil.copy(file, tmp_path / "copy.ndjson")
    assert payloads_at(tmp_path) == [b"1", b"2"]


# --- what a killed writer leaves


@pytest.fixture
def lines(tmp_path: Path) -> bytes:
    """Three letters, as they are in a file."""
    with to_files(tmp_path / "source") as route:
        route(letters(b"1", b"\xff", b"3"))
    [file] = (tmp_path / "source").glob("*.ndjson")
    return file.read_bytes()


def test_a_torn_line_is_no_letter_wherever_it_was_torn(lines: bytes, tmp_path: Path) -> None:
    payloads = [b"1", b"\xff", b"3"]
    ends = [end for end, byte in enumerate(lines, 1) if byte == ord("\n")]
    for size in sorted(
        {*range(0, len(lines), 23), *(end + by for end in ends for by in (-1, 0, 1))} - {len(lines) + 1}
    ):
        place = tmp_path / str(size)
        to_files(place).close()
        (place / "letters-0.ndjson.open").write_bytes(lines[:size])
        whole = payloads[: lines[:size].count(b"\n")]
        assert payloads_at(place) == whole
        with to_files(place) as route:
            route(letters(b"4"))
        assert payloads_at(place) == [*whole, b"4"]
        assert set(ends_in(place)) == {".ndjson"}
        shutil.rmtree(place)


def test_a_file_that_has_a_writer_is_not_sealed_by_the_next(tmp_path: Path) -> None:
    with to_files(tmp_path) as first, to_files(tmp_path) as second:
        first(letters(b"1"))
        with to_files(tmp_path) as third:
            third(letters(b"3"))
        assert sorted(ends_in(tmp_path)) == [".ndjson", ".ndjson.open"]
        first(letters(b"2"))
        second(letters(b"4"))
    assert sorted(payloads_at(tmp_path), key=str) == [b"1", b"2", b"3", b"4"]


def test_a_forked_child_does_not_keep_a_file_open_for_its_parent(tmp_path: Path) -> None:
    """The next writer would take a killed parent for a living one."""
    route = to_files(tmp_path)
    route(letters(b"1"))

    def work() -> None:
        os.kill(os.getppid(), 0)
        to_files(tmp_path).close()

    assert in_forked_child(work) == "nothing was raised"
    assert ends_in(tmp_path) == [".ndjson.open"]  # the parent's lock is held
    route(letters(b"2"))
    route.close()
    assert payloads_at(tmp_path) == [b"1", b"2"]


def test_letters_that_were_copied_without_the_hidden_file_are_gone_on_with(lines: bytes, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letters-0.ndjson").write_bytes(lines)
    with to_files(tmp_path / "letters") as route:
        route(letters(b"4"))
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3", b"4"]


def test_a_sealed_file_is_read_though_a_writer_that_looks_for_it_has_made_an_empty_one(
    lines: bytes, tmp_path: Path
) -> None:
    """A writer opens, to lock it, the name under which it has listed a file; its own writer may have sealed it."""
    to_files(tmp_path / "letters").close()
    (tmp_path / "letters" / "letters-0.ndjson").write_bytes(lines)
    (tmp_path / "letters" / "letters-0.ndjson.open").touch()
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3"]
    to_files(tmp_path / "letters").close()
    assert names_in(tmp_path / "letters") == ["letters-0.ndjson"]
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3"]


def test_an_older_copy_of_a_file_does_not_replace_the_sealed_one(
    lines: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a backup has it that copies a directory again and again, and deletes nothing."""
    to_files(tmp_path / "letters").close()
    (tmp_path / "letters" / "letters-0.ndjson").write_bytes(lines)
    (tmp_path / "letters" / "letters-0.ndjson.open").write_bytes(lines[: lines.index(b"\n") + 1])
    with to_files(tmp_path / "letters") as route:
        route(letters(b"4"))
    assert "letters-0.ndjson.open in" in caplog.text
    assert "is there under its sealed name too, and is left as it is" in caplog.text
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3", b"4"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[:-1], r"line 3 of .*\.ndjson, which is sealed, has no end: its file was cut"),
        (lambda lines: b"{}\n" + lines, r"line 1 of .*\.ndjson: it is no dead letter"),
        (lambda lines: lines + b"\0\0\0\n", r"line 4 of .*\.ndjson: it is no dead letter"),
        (lambda lines: lines.replace(b'"letter":1', b'"letter":2', 1), "it has the version 2, and this Penstock reads"),
        (lambda lines: lines.replace(b"/w==", b"/w=!"), "line 2 of .*: it is no dead letter"),
        (
            lambda lines: b'{"x":' + b"[" * 100_000 + b"\n" + lines,
            "line 1 of .*: it is no dead letter: maximum recursion",
        ),
        (
            lambda lines: lines.replace(b'"at":"20', b'"at":"x0', 1),
            "line 1 of .*: it is no dead letter: Invalid isoformat",
        ),
        (lambda lines: lines.replace(b"+00:00", b"", 1), "line 1 of .*: it is no dead letter: its time .* has no zone"),
    ],
)
def test_damage_in_a_sealed_file_is_an_error_that_names_the_line(
    change: Callable[[bytes], bytes], why: str, lines: bytes, tmp_path: Path
) -> None:
    assert change(lines) != lines
    to_files(tmp_path / "letters").close()
    (tmp_path / "letters" / "letters-0.ndjson").write_bytes(change(lines))
    with pytest.raises(CorruptData, match=why):
        stored_at(tmp_path / "letters")


def test_what_a_power_failure_leaves_in_an_open_file_is_kept_and_logged(
    lines: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = lines + b"\0" * 10 + b"\n" + lines
    to_files(tmp_path / "letters").close()
    file = tmp_path / "letters" / "letters-0.ndjson.open"
    file.write_bytes(damaged)
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3"]
    assert "reading the letters before line 4 of letters-0.ndjson" in caplog.text
    with to_files(tmp_path / "letters") as route:
        route(letters(b"4"))
    assert file.read_bytes() == damaged
    assert "letters-0.ndjson.open in" in caplog.text
    assert payloads_at(tmp_path / "letters") == [b"1", b"\xff", b"3", b"4"]


# --- a disk that refuses


class Syncs:
    """Stands for `os.fsync`, and fails at calls that are counted from 0."""

    def __init__(self, failing: range, error: BaseException) -> None:
        self._failing = failing
        self._error = error
        self._sync = os.fsync
        self.calls = 0

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        if self.calls - 1 in self._failing:
            raise self._error
        self._sync(descriptor)


@pytest.mark.parametrize("is_first", [True, False], ids=["new file", "old file"])
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_a_failed_sync_fails_the_call_and_nothing_that_was_stored_is_lost(
    is_first: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = to_files(tmp_path)
    before = [] if is_first else [b"1"]
    route(letters(*before))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Syncs(range(count), OSError(errno.EIO, "Input/output error")))
        with pytest.raises(StorageError, match=r"1 dead letters could not be written to .*: Input/output error"):
            route(letters(b"2"))
    found = payloads_at(tmp_path)
    assert found == before or count > 1  # where it cannot be cut, the line may be there: it comes again
    assert found[: len(before)] == before
    route(letters(b"3"))
    route.close()
    to_files(tmp_path).close()
    assert payloads_at(tmp_path) in ([*before, b"3"], [*before, b"2", b"3"])
    assert set(ends_in(tmp_path)) == {".ndjson"}


def test_a_file_whose_sync_failed_is_not_appended_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with to_files(tmp_path) as route:
        route(letters(b"1"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Syncs(range(1), OSError(errno.EIO, "Input/output error")))
            with pytest.raises(StorageError):
                route(letters(b"2"))
        [sealed] = names_in(tmp_path)
        assert sealed.endswith(".ndjson")
        route(letters(b"3"))
        assert ends_in(tmp_path) == [".ndjson", ".ndjson.open"]
    assert payloads_at(tmp_path) == [b"1", b"3"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: a write stops in the middle, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 100, 300])
def test_a_write_that_stops_in_the_middle_of_a_line_is_taken_back(more: int, tmp_path: Path) -> None:
    with to_files(tmp_path) as route:
        route(letters(b"1"))
        [file] = tmp_path.glob("*.open")
        with largest_file(file.stat().st_size + more), pytest.raises(StorageError, match="File too large"):
            route(letters(b"2" * 100, b"3" * 100))
        assert payloads_at(tmp_path) == [b"1"]
        assert ends_in(tmp_path) == [".ndjson"]
        route(letters(b"4"))
    assert payloads_at(tmp_path) == [b"1", b"4"]


def test_on_a_full_disk_the_call_fails_and_goes_on_when_there_is_space(mount: Callable[[str], Path]) -> None:
    disk = mount("size=256k")
    stored: list[bytes] = []
    filler = disk / "filler"
    with to_files(disk / "letters", rotate_bytes=20_000) as route:
        for number in range(1000):
            block = [b"%d-%d-" % (number, letter) + b"x" * 900 for letter in range(3)]
            try:
                route(letters(*block))
            except StorageError as error:
                why = str(error)
                break
            stored += block
            if number == 20:
                filler.write_bytes(b"x" * 60_000)
        else:
            pytest.fail("the disk was never full")
        assert "No space left on device" in why
        assert payloads_at(disk / "letters") == stored
        filler.unlink()
        route(letters(b"last"))
    assert payloads_at(disk / "letters") == [*stored, b"last"]


def test_a_directory_that_is_gone_fails_the_call(tmp_path: Path) -> None:
    route = to_files(tmp_path / "letters", rotate_bytes=1)
    route(letters(b"1"))
    shutil.rmtree(tmp_path / "letters")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"1 dead letters could not be written to .*: No such file or directory"):
            route(letters(b"2"))
    route.close()


def test_a_directory_that_is_removed_or_moved_is_noticed_though_its_file_is_still_open(tmp_path: Path) -> None:
    route = to_files(tmp_path / "letters")
    route(letters(b"1"))
    (tmp_path / "letters").rename(tmp_path / "moved")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"1 dead letters could not be written to .*: No such file or directory"):
            route(letters(b"2"))
    assert payloads_at(tmp_path / "moved") == [b"1"]
    (tmp_path / "letters").mkdir()
    route(letters(b"2"))
    route.close()
    assert payloads_at(tmp_path / "letters") == [b"2"]


@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "another file in its place"])
def test_letters_do_not_go_to_a_file_that_is_no_longer_in_the_directory(
    is_replaced: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with to_files(tmp_path) as route:
        route(letters(b"1"))
        [file] = tmp_path.glob("*.open")
        line = file.read_bytes()
        file.unlink()
        if is_replaced:
            file.write_bytes(line)
        route(letters(b"2"))
        assert payloads_at(tmp_path) == [b"1", b"2"][not is_replaced :]
    assert f"{file.name} in {tmp_path} was moved or removed: " in caplog.text


def test_a_directory_that_is_a_disk_of_its_own_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with to_files(tmp_path) as route:
        route(letters(b"1"))
    assert payloads_at(tmp_path) == [b"1"]


def test_a_line_is_a_line_for_tools_that_know_other_line_breaks(tmp_path: Path) -> None:
    payload = "\n \r \v \f \x1c \x1d \x1e \x85 \u2028 \u2029 \x7f \0 \\u2028".encode()
    given = DeadLetter(payload, "why \u2028", payload, [("\u2029", payload)])
    with to_files(tmp_path) as route:
        route([given, given])
    [file] = tmp_path.glob("*.ndjson")
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["payload"].encode() for line in lines] == [payload, payload]
    assert [(one.payload, one.key, one.headers, one.reason) for one in stored_at(tmp_path)] == [
        (payload, payload, (("\u2029", payload),), "why \u2028")
    ] * 2


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be used for dead letters: Not a directory"):
        to_files(tmp_path / "file" / "letters")


# --- interrupts


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a file that was interrupted is closed when nothing has it
@pytest.mark.parametrize("event", ["call", "return"])
def test_an_interrupt_at_any_function_loses_no_letter_and_tears_none(event: str, tmp_path: Path) -> None:
    def is_place(frame: FrameType, happened: str) -> bool:
        frame.f_trace_lines = False
        # A generator is also entered when it is discarded, where an exception is lost.
        return happened == event and not frame.f_code.co_flags & inspect.CO_GENERATOR

    interrupted = 0
    for number in range(2000):
        place = tmp_path / str(number)
        route = to_files(place, rotate_bytes=300)
        route(letters(b"1"))
        stored = [b"1"]

        def work(route: Any = route, stored: list[bytes] = stored) -> None:
            for payload in (b"2", b"3"):
                route(letters(payload))
                stored.append(payload)

        interrupt = Interrupts(number, lambda file: file.endswith(SOURCES), is_place)
        interrupt.during(work)
        if not interrupt.came:
            break
        interrupted += 1
        route(letters(b"4"))
        route.close()
        to_files(place).close()
        found = payloads_at(place)  # of sealed files, where a torn line is an error
        assert [one for one in found if one in (*stored, b"4")] == [*stored, b"4"], interrupt.place
        assert set(ends_in(place)) == {".ndjson"}
        shutil.rmtree(place)
    assert interrupted > 20


# --- readers


def test_a_reader_beside_a_writer_finds_every_letter_that_was_stored_before(tmp_path: Path) -> None:
    written = 0
    stop = threading.Event()

    def write() -> int:
        nonlocal written
        try:
            with to_files(tmp_path, rotate_bytes=600) as route:
                for number in range(300):
                    route(letters(b"%d" % number))
                    written = number + 1
        finally:
            stop.set()
        return 0

    def read() -> int:
        reads = 0
        while not stop.is_set():
            before = written
            found = payloads_at(tmp_path) if (tmp_path / MARKER).exists() else []
            assert found == [b"%d" % number for number in range(len(found))]
            assert len(found) >= before
            reads += 1
        return reads

    _, reads = together(write, read)
    assert reads > 1
    assert len(payloads_at(tmp_path)) == 300


def test_a_file_that_is_removed_while_it_is_to_be_read_is_said_to_be_gone(tmp_path: Path) -> None:
    with to_files(tmp_path, rotate_bytes=1) as route:
        for payload in (b"1", b"2"):
            route(letters(payload))
    found = open_letters(str(tmp_path))
    assert found is not None
    reading = found.letters()
    assert next(reading).payload == b"1"
    (tmp_path / names_in(tmp_path)[1]).unlink()
    with pytest.raises(NotFound, match="was removed while it was to be read"):
        next(reading)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    route = to_files(tmp_path / "letters")
    route(letters(b"1"))
    (tmp_path / "letters" / "letters-0.ndjson.open").write_bytes(b'{"torn')
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert payloads_at(tmp_path / "letters") == [b"1"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    route.close()


def test_a_route_is_a_policy_as_it_is(tmp_path: Path) -> None:
    route = to_files(tmp_path)
    assert DlqPolicy.route(route).send is route
    assert repr(route) == f"to_files({str(tmp_path)!r})"
    route.close()
