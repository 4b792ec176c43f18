"""Which files a `FileReceiver` reads, and how it knows them again: links, mounts, deletions, many files."""

from __future__ import annotations

import gzip
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core import decode_fields, encode_fields
from penstock.engine import FileReceiver
from penstock.errors import StorageError


def read(source: FileReceiver, *, within: float = 0.7, commit: bool = True) -> list[bytes]:
    """What comes until nothing does for so many seconds, and at least one more scan was made."""
    values, until = list[bytes](), time.monotonic() + 20
    while time.monotonic() < until:
        block = source.recv(1000, timeout=within)
        if not block.commit_tokens:
            return values
        values += [record.value for record in block.records]
        if commit:
            source.commit(block.commit_tokens)
    raise AssertionError("there is no end of it")


def read_once(pattern: Path, state: Path | None = None, last_line_after: float | None = None) -> list[bytes]:
    with FileReceiver(pattern, state=state, last_line_after=last_line_after) as source:
        return read(source)


def test_a_file_whose_name_begins_as_the_state_is_read_and_the_state_is_not(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_text("one\n")
    assert read_once(tmp_path / "*", tmp_path / "app", last_line_after=0) == [b"one"]


def test_the_lines_of_a_deleted_file_come_again_after_a_rewind(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthree\n")
    with FileReceiver(tmp_path / "*.log") as source:
        source.commit(source.recv(1).commit_tokens)
        assert len(source.recv(10)) == 2
        path.unlink()
        source.rewind()
        assert read(source) == [b"two", b"three"]


def test_a_file_that_is_missing_in_one_scan_is_not_read_anew(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "a.log", tmp_path / "elsewhere"
    path.write_text("one\n")
    elsewhere.mkdir()
    assert read_once(tmp_path / "*.log") == [b"one"]
    with FileReceiver(tmp_path / "*.log") as source:
        path.rename(elsewhere / "a.log")
        assert len(source.recv(10, timeout=0)) == 0
        (elsewhere / "a.log").rename(path)
        assert read(source) == []


def test_what_follows_in_the_target_of_a_link_is_read_after_its_rotation(tmp_path: Path) -> None:
    target, links = tmp_path / "pod", tmp_path / "links"
    target.mkdir()
    links.mkdir()
    (target / "0.log").write_text("one\n")
    (links / "a.log").symlink_to(target / "0.log")
    assert read_once(links / "*.log") == [b"one"]
    with (target / "0.log").open("a") as file:
        file.write("two\n")
    (target / "0.log").rename(target / "0.log.1")
    (target / "0.log").write_text("three\n")
    assert sorted(read_once(links / "*.log")) == [b"three", b"two"]


@pytest.mark.parametrize("is_same", [True, False])
def test_a_file_on_a_device_with_a_new_number_is_known_by_its_content(tmp_path: Path, is_same: bool) -> None:
    (tmp_path / "a.log").write_text("one\n")
    assert read_once(tmp_path / "*.log", state=tmp_path / "state") == [b"one"]
    fields = decode_fields((tmp_path / "state").read_bytes(), {"next_id": int, "files": str}, 1)
    (file,) = json.loads(str(fields["files"]))
    file["device"] += 1
    text = json.dumps([file])
    (tmp_path / "state").write_bytes(encode_fields({"version": 1, "next_id": fields["next_id"], "files": text}))
    with (tmp_path / "a.log").open("a" if is_same else "r+") as log:
        log.write("two\n")
    assert read_once(tmp_path / "*.log", state=tmp_path / "state") == [b"two"]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_file_that_was_written_anew_with_the_same_end_begins_anew(tmp_path: Path, is_running: bool) -> None:
    path = tmp_path / "a.log"
    path.write_text("start 1\n" + "tick\n" * 20)
    source = FileReceiver(tmp_path / "*.log")
    assert len(read(source)) == 21
    if not is_running:
        source.close()
        source = FileReceiver(tmp_path / "*.log")
    path.write_text("start 2\n" + "tick\n" * 20)
    assert len(read(source)) == 21
    source.close()


def test_a_file_that_was_written_anew_with_its_size_and_time_kept_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    with FileReceiver(tmp_path / "*.log") as source:
        assert read(source) == [b"one"]
        before = path.stat()
        path.write_text("two\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert read(source) == [b"two"]


@pytest.mark.slow
def test_a_file_of_parquet_that_was_written_anew_begins_anew(tmp_path: Path) -> None:
    with FileReceiver(tmp_path / "*.parquet") as source:
        for numbers in ([1], [2, 3], [4, 5, 6]):
            pq.write_table(pa.table({"n": numbers}), tmp_path / "a.parquet")
            assert read(source) == [b'{"n":%d}' % number for number in numbers]


def test_a_damaged_file_of_parquet_is_an_error_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(100_000))}), path)
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xff" * 4000 + data[4100:])
    with (
        FileReceiver(tmp_path / "*.parquet") as source,
        pytest.raises(StorageError, match=r"/a\.parquet cannot be read"),
    ):
        source.recv(10)
    assert not source.healthy


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_descriptors")
def test_more_files_than_a_process_may_open_are_read_and_followed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(1000)]
    with FileReceiver(tmp_path / "*.log") as source:
        for turn in range(2):
            for path in paths:
                with path.open("a") as file:
                    file.write(f"{path.stem} {turn}\n")
            assert sorted(read(source)) == sorted(b"%d %d" % (number, turn) for number in range(len(paths)))


def test_compressed_files_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (tmp_path / "a.log.2.gz").write_bytes(gzip.compress(os.urandom(10_000)))
    assert read_once(tmp_path / "a.log*") == [b"one"]
    assert caplog.text.count("a.log.2.gz is compressed, and not read") == 1


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "folder.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "nowhere.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.log").write_text("deep\n")
    assert read_once(tmp_path / "**" / "*.log") == [b"deep"]


def test_a_state_on_a_full_disk_is_an_error_and_the_lines_come_again(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    with FileReceiver(tmp_path / "*.log", state=tmp_path / "state") as source:
        tokens = source.recv(10).commit_tokens
        (tmp_path / "state.tmp").symlink_to("/dev/full")  # where the next state is written first
        with pytest.raises(StorageError, match="cannot be written: No space left on device"):
            source.commit(tokens)
        assert not source.healthy
        (tmp_path / "state.tmp").unlink()
        source.rewind()
        assert read(source) == [b"one"]
    assert read_once(tmp_path / "*.log", state=tmp_path / "state") == []


def test_a_file_under_the_name_of_one_that_was_truncated_is_not_read_twice(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text("one\n")
    second.write_text("two\n")
    with FileReceiver(tmp_path / "*.log") as source:
        assert sorted(read(source, within=0.1)) == [b"one", b"two"]
        first.rename(tmp_path / "c.log")
        os.truncate(tmp_path / "c.log", 0)
        second.rename(first)  # before the next scan
        assert read(source) == []
        (tmp_path / "c.log").write_text("three\n")
        assert read(source) == [b"three"]


@pytest.mark.slow
def test_a_file_that_gets_the_name_of_a_new_one_in_a_scan_is_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, new, aside = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "aside"
    known.write_text("one\n")
    stat, seen = os.stat, set[str]()

    def swapping(path: str, **more: bool) -> os.stat_result:
        found = stat(path, **more)
        both = {str(known), str(new)}
        if path in both - seen:
            seen.add(path)
            if seen == both:
                new.rename(aside)
                known.rename(new)
                aside.rename(known)
        return found

    with FileReceiver(tmp_path / "*.log") as source:
        assert read(source) == [b"one"]
        new.write_text("two\n")
        monkeypatch.setattr(os, "stat", swapping)
        assert read(source, within=2) == [b"two"]
    assert len(seen) == 2
