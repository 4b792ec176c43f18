"""`FileReceiver` over files that grow, rotate, are renamed, truncated and deleted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.engine import BatchEngine, EngineConfig, FileReceiver, FileToken, WorkBatch
from penstock.errors import Closed, CorruptData, InvalidInput, SinkFailed, StorageError

Open = Callable[..., FileReceiver]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(pattern: str = "*.log", **more: Any) -> FileReceiver:
            return opened.enter_context(FileReceiver(tmp_path / pattern, **more))

        yield open_one


def take(source: FileReceiver, count: int, *, commit: bool = True, **limits: Any) -> list[bytes]:
    """Values of blocks, committed, until there are so many; what comes within half a second where that is 0."""
    values = list[bytes]()
    for _ in range(40):
        block = source.recv(limits.get("max_records", 1000), limits.get("max_bytes"), timeout=0.6 if not count else 1)
        values += [record.value for record in block.records]
        if commit:
            source.commit(block.commit_tokens)
        if len(values) >= count:
            break
    return values


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_come_once_across_restarts_and_a_line_waits_for_its_newline(tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one\n\ntwo\nthr")
    with FileReceiver(tmp_path / "*.log") as first:
        assert take(first, 2) == [b"one", b"two"]
        assert take(first, 0) == []
    append(tmp_path / "a.log", "ee\n")
    with FileReceiver(tmp_path / "*.log") as second:
        assert take(second, 1) == [b"three"]
        append(tmp_path / "b.log", "new\n")
        assert take(second, 1) == [b"new"]


def test_files_that_are_there_at_the_start_come_by_their_time_then_their_name(tmp_path: Path, receiver: Open) -> None:
    for name, at in (("c", 100), ("b", 200), ("a", 200)):
        append(tmp_path / f"{name}.log", f"{name}\n")
        os.utime(tmp_path / f"{name}.log", (at, at))
    assert take(receiver(), 3) == [b"c", b"a", b"b"]


def test_a_renamed_file_goes_on_at_its_offset_under_a_name_that_matches_no_more(tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one\ntwo\n")
    with FileReceiver(tmp_path / "*.log") as first:
        assert take(first, 1, max_records=1) == [b"one"]
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    append(tmp_path / "a.log.1", "three\n")
    append(tmp_path / "a.log", "fresh\n")
    with FileReceiver(tmp_path / "*.log") as second:
        assert sorted(take(second, 3)) == [b"fresh", b"three", b"two"]
        (tmp_path / "a.log.1").rename(tmp_path / "a.log.2")
        append(tmp_path / "a.log.2", "late\n")
        assert take(second, 1) == [b"late"]


@pytest.mark.parametrize("rewritten", ["x\n", "one\nand much longer than it was\n", "other lines, at once\n"])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_truncated_file_begins_anew(rewritten: str, is_running: bool, tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one\ntwo\n")
    first = FileReceiver(tmp_path / "*.log")
    take(first, 2)
    if not is_running:
        first.close()
    with (tmp_path / "a.log").open("r+") as file:
        file.truncate()
        file.write(rewritten)
    source = first if is_running else FileReceiver(tmp_path / "*.log")
    expected = rewritten.encode().splitlines()
    assert take(source, len(expected)) == expected
    source.close()


def test_a_deleted_file_is_read_to_its_end_while_it_is_open(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "one\ntwo\n")
    source = receiver()
    assert take(source, 1, max_records=1) == [b"one"]
    (tmp_path / "a.log").unlink()
    assert take(source, 1) == [b"two"]
    append(tmp_path / "a.log", "next\n")
    assert take(source, 1) == [b"next"]


def test_a_block_that_fails_comes_again_and_after_that_run_nothing_does(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "one\ntwo\n")
    source, sunk = receiver(), list[bytes]()

    def fail_once(batch: WorkBatch) -> None:
        sunk.extend(record.value for record in batch.records)
        if len(sunk) == 2:
            raise ValueError("not now")

    engine = BatchEngine(EngineConfig(recv_timeout=0.6))
    with pytest.raises(SinkFailed):
        engine.run(source, lambda batch: batch, fail_once)
    engine.run(source, lambda batch: batch, fail_once, until_idle=True)
    assert sunk == [b"one", b"two"] * 2
    assert take(source, 0) == []


def test_tokens_that_a_sink_kept_skip_what_it_has(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "one\ntwo\nthree\n")
    source = receiver()
    kept = source.recv(2).commit_tokens
    assert [(token.file, token.offset) for token in kept] == [(1, 8)]
    source.close()
    again = receiver()
    again.commit(kept)
    assert take(again, 1) == [b"three"]
    with pytest.raises(InvalidInput, match="never had that file"):
        again.commit([FileToken(99, 1)])


def test_tokens_that_a_sink_kept_skip_nothing_of_a_file_that_was_truncated_since(
    tmp_path: Path, receiver: Open
) -> None:
    append(tmp_path / "a.log", "")
    source = receiver()
    assert take(source, 0) == []  # it is known, and was empty
    append(tmp_path / "a.log", "one\n")
    kept = source.recv(10, timeout=2).commit_tokens
    source.close()  # as a kill before the commit
    (tmp_path / "a.log").write_text("two\nthree\n")
    again = receiver()
    again.commit(kept)
    assert take(again, 2) == [b"two", b"three"]


@pytest.mark.parametrize("token", [7, (1,), (1, 2, 3), (0, 1), (1, -1), ("a", 1)])
def test_what_is_no_token_is_refused(token: Any, receiver: Open) -> None:
    with pytest.raises(InvalidInput):
        receiver().commit([token])


def test_rows_of_csv_are_objects_and_bad_ones_dead_letters(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.csv", '\ufeffid,text\r\n1,"a ""b""\nc"\r\n2\r\n3,"d')
    source = receiver("*.csv")
    block = source.recv(10, timeout=1)
    assert [record.value for record in block.records] == [b'{"id":"1","text":"a \\"b\\"\\nc"}']
    assert [letter.reason.partition(" of ")[0] for letter in block.dead_letters] == ["the row at offset 27"]
    source.commit(block.commit_tokens)
    source.close()
    append(tmp_path / "a.csv", '"\r\n')
    assert take(receiver("*.csv"), 1) == [b'{"id":"3","text":"d"}']


def test_a_header_of_csv_with_a_name_twice_is_an_error(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.csv", "a,a\n1,2\n")
    with pytest.raises(CorruptData, match="must name each column once"):
        receiver("*.csv").recv(10)


def test_rows_of_parquet_are_objects_and_a_file_that_is_not_whole_waits(tmp_path: Path, receiver: Open) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3], "s": ["a", None, "c"]}), tmp_path / "whole", row_group_size=2)
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:-5])
    source = receiver("*.parquet")
    assert take(source, 0) == []
    (tmp_path / "a.parquet").write_bytes(data)
    assert take(source, 2, max_records=2) == [b'{"n":1,"s":"a"}', b'{"n":2,"s":null}']
    source.close()
    assert take(receiver("*.parquet"), 1) == [b'{"n":3,"s":"c"}']


@pytest.mark.parametrize("size", [11, 3_000_000])
def test_a_line_that_is_too_long_is_a_dead_letter(size: int, tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "x" * size)
    source = receiver(max_line_bytes=10)
    assert not source.recv(10, timeout=0.6).dead_letters
    append(tmp_path / "a.log", "\nshort\n")
    letters, values = list[Any](), list[bytes]()
    while not values:
        block = source.recv(10, timeout=1)
        letters += block.dead_letters
        values += [record.value for record in block.records]
    assert ([letter.payload for letter in letters], values) == ([b"x" * 10], [b"short"])
    assert "longer than max_line_bytes = 10" in letters[0].reason


def test_a_last_line_without_newline_comes_when_its_file_rests(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "one\nlast")
    assert take(receiver(last_line_after=0), 2) == [b"one", b"last"]


def test_a_block_has_at_most_so_many_bytes_but_one_line_at_least(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "aaaa\nbbbb\ncccccccccccc\nd\n")
    source = receiver()
    blocks = [[record.value for record in source.recv(10, max_bytes=9).records] for _ in range(3)]
    assert blocks == [[b"aaaa", b"bbbb"], [b"cccccccccccc"], [b"d"]]


def test_a_file_that_grows_does_not_keep_the_others_from_their_turn(tmp_path: Path, receiver: Open) -> None:
    append(tmp_path / "a.log", "a\n" * 10)
    append(tmp_path / "b.log", "b\n")
    source, values = receiver(), list[bytes]()
    for _ in range(12):
        append(tmp_path / "a.log", "a\n" * 5)
        values += take(source, 5, max_records=5)
    assert b"b" in values


def test_one_receiver_at_a_time_has_a_state(tmp_path: Path, receiver: Open) -> None:
    receiver(state=tmp_path / "state")
    with pytest.raises(StorageError, match="in use by another FileReceiver"):
        receiver(state=tmp_path / "state")
    receiver(state=tmp_path / "another")


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    FileReceiver(tmp_path / "*.log", state=tmp_path / "state").close()
    (tmp_path / "state").write_text('{"version":1}')
    for _ in range(2):
        with pytest.raises(CorruptData, match="delete it to read every file again"):
            FileReceiver(tmp_path / "*.log", state=tmp_path / "state")


@pytest.mark.parametrize("more", [{"format": "xml"}, {"max_line_bytes": 0}, {"last_line_after": -1}, {"filters": 7}])
def test_what_is_no_setting_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        FileReceiver(tmp_path / "*.log", **more)


def test_a_folder_that_does_not_exist_is_refused_and_a_closed_receiver_refuses(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no folder"):
        FileReceiver(tmp_path / "nowhere" / "*.log")
    closed = FileReceiver(tmp_path / "*.log")
    closed.close()
    closed.close()
    assert not closed.healthy
    with pytest.raises(Closed):
        closed.recv(1)
