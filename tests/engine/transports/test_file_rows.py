"""The rows of one file: byte order marks, blank lines, quotes of CSV, times of Parquet."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import FileReceiver


def read(path: Path, **more: Any) -> tuple[list[bytes], list[str]]:
    """The values and the reasons of dead letters of a file, which is read anew."""
    path.with_name("state").unlink(missing_ok=True)
    with FileReceiver(path, state=path.with_name("state"), **more) as source:
        block = source.recv(1000, timeout=0.5)
    return [record.value for record in block.records], [letter.reason for letter in block.dead_letters]


def test_a_byte_order_mark_and_blank_lines_are_no_part_of_the_records(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\r\n{"a":2}\r\n')
    assert read(tmp_path / "a.log") == ([b'{"a":1}\r', b'{"a":2}\r'], [])


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_a_newline_ends_a_row_of_csv(character: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,text\n1,a{character}b\n", newline="")
    assert read(tmp_path / "a.csv") == ([msgspec.json.encode({"id": "1", "text": f"a{character}b"})], [])


def test_a_carriage_return_within_a_row_of_csv_is_a_dead_letter(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\rb\n2,c\n", newline="")
    values, reasons = read(tmp_path / "a.csv")
    assert values == [b'{"id":"2","text":"c"}']
    assert "is no line of CSV" in reasons[0]


def test_a_quote_within_a_field_of_csv_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,5" pipe\n2,ok\n')
    assert read(tmp_path / "a.csv") == ([b'{"id":"1","text":"5\\" pipe"}', b'{"id":"2","text":"ok"}'], [])


_field = st.text(alphabet='a",\n ', max_size=5) | st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=5
)


@given(rows=st.lists(st.lists(_field, min_size=2, max_size=2), min_size=1, max_size=6), is_marked=st.booleans())
def test_rows_that_pythons_csv_writes_come_as_they_were(
    rows: list[list[str]], is_marked: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["na\nme", "b"], *rows])
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes((b"\xef\xbb\xbf" if is_marked else b"") + text.getvalue().encode())
    assert read(path) == ([msgspec.json.encode({"na\nme": one, "b": other}) for one, other in rows], [])


def test_a_last_line_that_is_too_long_and_has_no_newline_is_a_dead_letter(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 100)
    values, reasons = read(tmp_path / "a.log", max_line_bytes=10, last_line_after=0)
    assert (values, len(reasons)) == ([], 1)


def test_nanoseconds_of_parquet_are_cut_off_in_every_type(tmp_path: Path) -> None:
    kind, at = pa.timestamp("ns"), 1_000_000_999
    columns = {
        "time": pa.array([at], kind),
        "list": pa.array([[at]], pa.list_(kind)),
        "struct": pa.array([{"x": at}], pa.struct([("x", pa.duration("ns"))])),
        "map": pa.array([[("a", at)]], pa.map_(pa.string(), kind)),
        "of_day": pa.array([at], pa.time64("ns")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    ((value,), _) = read(tmp_path / "a.parquet")
    time = "1970-01-01T00:00:01"
    expected = {"time": time, "list": [time], "struct": {"x": "PT1S"}, "map": [["a", time]], "of_day": "00:00:01"}
    assert msgspec.json.decode(value) == expected
