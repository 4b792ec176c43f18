"""`penstock dlq`: dead letters counted, shown, and sent into a buffer again, each once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, Record
from penstock.buffer import Groups
from penstock.records import records_from_arrow
from tests.support.command import MAIN, Here
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")

from penstock.spark.tables.parquet.table import open_table
from tests.support.plain_tables import put_letters, put_numbers


@pytest.fixture
def letters(tmp_path: Path) -> str:
    url = str(tmp_path / "letters")
    table = open_table(None, url)
    put_letters(
        table,
        [
            {"payload": b'{"id": 1, "id": 2}', "reason": "the key 'id' is there twice"},
            {"payload": b'{"id": "x"}', "key": b"k1", "headers": [{"key": "lang", "value": b"en"}]},
            {"payload": b'{"id": "y"}'},
        ],
    )
    put_letters(table, [{"payload": b"\x00\xff", "reason": "no UTF-8", "stage": "process"}], 1)
    return url


@pytest.fixture
def buffer(tmp_path: Path) -> str:
    url = str(tmp_path / "events")
    Groups(url).create("audit")
    return url


def events(buffer: str) -> list[Record]:
    with Consumer(buffer, ConsumerConfig(gc=False, group="audit")) as consumer:
        found: list[Record] = []
        while (batch := consumer.next_batch()) is not None:
            found += records_from_arrow(batch.arrow)
        return found


def each(here: Here, table: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(here("dlq", "list", table, "--each", "--json", *words).out)
    return found


# list


def test_letters_are_counted_by_reason(letters: str, here: Here) -> None:
    shown = here("dlq", "list", letters)
    assert (shown.status, shown.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines() if line[0] == "│"]
    assert [row[:4] for row in rows] == [
        ["2", "0", "parse", "it ends too early"],
        ["1", "0", "process", "no UTF-8"],
        ["1", "0", "parse", "the key 'id' is there twice"],
    ]
    assert rows[0][4] == "2026-01-31 12:00:00 UTC"
    assert shown.out.endswith("4 dead letters, 0 replayed\n")


def test_scripts_get_the_counts_as_json(letters: str, here: Here) -> None:
    found = json.loads(here("dlq", "list", letters, "--json", "--most", "1").out)
    assert (found["letters"], found["replayed"], found["distinct_reasons"]) == (4, 0, 3)
    [first] = found["reasons"]
    assert (first["reason"], first["letters"], first["first"]) == ("it ends too early", 2, "2026-01-31T12:00:00+00:00")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--reason", "early"], 2),
        (["--reason", "^no .*8$"], 1),
        (["--reason", "key 'id"], 1),
        (["--reason", "(["], 0),
        (["--stage", "process"], 1),
        (["--since", "2026-01-31T12:01:00Z"], 1),
        (["--since", "2026-01-31"], 4),
        (["--since", "2 hours"], 0),
    ],
)
def test_letters_are_chosen_by_reason_stage_and_time(letters: str, here: Here, words: list[str], count: int) -> None:
    assert json.loads(here("dlq", "list", letters, "--json", *words).out)["letters"] == count
    assert len(each(here, letters, *words)) == count


def test_where_no_letter_matches_the_stages_that_there_are_are_named(letters: str, buffer: str, here: Here) -> None:
    shown = here("dlq", "list", letters, "--stage", "prase")
    assert shown.out == "0 of 4 dead letters (of the stages parse, process) match, 0 replayed\n"
    assert here("dlq", "list", letters, "--stage", "prase", "--each").out.startswith("0 of 4 dead letters ")
    assert here("dlq", "list", letters, "--stage", "parse").out.endswith("3 of 4 dead letters match, 0 replayed\n")
    done = here("dlq", "replay", letters, "--to", buffer, "--stage", "prase")
    assert done.out.splitlines()[1:] == ["  no letter matches"]


def test_a_long_reason_is_cut_in_a_table_and_whole_in_json(tmp_path: Path, here: Here) -> None:
    url, reason = str(tmp_path / "letters"), "why " * 100
    put_letters(open_table(None, url), [{"reason": reason}])
    for words in ([], ["--each"]):
        shown = here("dlq", "list", url, *words).out
        assert "why why" in shown
        assert shown.count("why") < 40
    assert each(here, url)[0]["reason"] == reason


def test_listing_writes_nothing(letters: str, here: Here, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    here("dlq", "list", letters)
    here("dlq", "show", letters, each(here, letters)[0]["id"])
    assert sorted(tmp_path.rglob("*")) == before


def test_ids_stay_when_the_table_is_compacted(letters: str, here: Here) -> None:
    before = {letter["id"]: letter for letter in each(here, letters)}
    here("table", "compact", letters)
    assert {letter["id"]: letter for letter in each(here, letters)} == before
    assert len(before) == 4


def test_equal_letters_have_ids_of_their_own(tmp_path: Path, here: Here) -> None:
    url = str(tmp_path / "letters")
    put_letters(open_table(None, url), [{"index": None, "sequence": None}] * 3)
    ids = [letter["id"] for letter in each(here, url)]
    assert len(set(ids)) == 3


def test_ids_of_letters_that_differ_in_their_timestamps_do_not_depend_on_their_order(
    tmp_path: Path, here: Here
) -> None:
    times = [datetime(2026, 1, 31, 11, minute, tzinfo=UTC) for minute in range(2)]
    found: list[dict[str, int]] = []
    for order in (times, times[::-1]):
        url = str(tmp_path / f"letters-{len(found)}")
        rows = [{"index": None, "sequence": None, "timestamp": time} for time in order]
        put_letters(open_table(None, url), rows)
        found.append({letter["id"]: letter["timestamp_ms"] for letter in each(here, url)})
    assert found[0] == found[1]
    assert len(found[0]) == 2


# show


def test_a_letter_is_shown_with_its_payload_readable(letters: str, here: Here) -> None:
    found = each(here, letters, "--reason", "early")[0]
    shown = here("dlq", "show", letters, found["id"][:8])
    assert (shown.status, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[2:8] == [
        "stage      parse",
        "reason     it ends too early",
        "from       batch 0, event 1",
        "key        k1",
        "header     lang: en",
        "payload    11 bytes",
    ]
    assert lines[8:] == ["{", '  "id": "x"', "}"]


def test_bytes_are_shown_as_hexadecimal_and_a_repeated_key_as_it_is(letters: str, here: Here) -> None:
    [binary] = each(here, letters, "--stage", "process")
    assert here("dlq", "show", letters, binary["id"]).out.endswith("00000000  00 ff" + " " * 44 + "..\n")
    assert here("dlq", "show", letters, binary["id"], "--raw").raw == b"\x00\xff"
    [twice] = each(here, letters, "--reason", "twice")
    assert here("dlq", "show", letters, twice["id"]).out.endswith('{"id": 1, "id": 2}\n')


def test_json_is_shown_with_the_numbers_and_texts_that_the_payload_has(tmp_path: Path, here: Here) -> None:
    url = str(tmp_path / "letters")
    payload = rb'{"a":[1e400,0.10000000000000000001,{}],"b":"\u00e9 {,}\"","c":[]}'
    put_letters(open_table(None, url), [{"payload": payload}])
    [letter] = each(here, url)
    lines = here("dlq", "show", url, letter["id"]).out.splitlines()
    assert lines[lines.index("{") :] == [
        "{",
        '  "a": [',
        "    1e400,",
        "    0.10000000000000000001,",
        "    {}",
        "  ],",
        r'  "b": "\u00e9 {,}\"",',
        '  "c": []',
        "}",
    ]


def test_a_letter_as_json(letters: str, here: Here) -> None:
    [binary] = each(here, letters, "--stage", "process")
    found = json.loads(here("dlq", "show", letters, binary["id"], "--json").out)
    assert (found["payload_base64"], found["reason"], found["replayed"]) == ("AP8=", "no UTF-8", None)
    assert (found["sequence"], found["index"], found["key"]) == (1, 0, None)


def test_control_characters_of_a_letter_do_not_reach_the_terminal(tmp_path: Path, here: Here) -> None:
    url = str(tmp_path / "letters")
    put_letters(open_table(None, url), [{"payload": b"a\x1b[2J", "reason": "\x1b[31mred", "key": b"\x9b1m"}])
    [letter] = each(here, url)
    shown = here("dlq", "show", url, letter["id"])
    listed = here("dlq", "list", url)
    assert b"\x1b" not in shown.raw + listed.raw
    assert b"\x9b" not in shown.raw


@pytest.mark.parametrize("wanted", ["ffffffffffffffffffff", ""])
def test_an_id_that_is_not_there_is_one_line(letters: str, here: Here, wanted: str) -> None:
    assert here("dlq", "show", letters, wanted).is_error("there is no letter with the id ")


def test_a_table_of_something_else_is_one_line(tmp_path: Path, here: Here) -> None:
    url = str(tmp_path / "rows")
    put_numbers(open_table(None, url), 0, 1)
    for words in (["list", url], ["show", url, "a"]):
        assert here("dlq", *words).is_error("this is no table of dead letters: it has no column 'payload'")
    assert here("dlq", "list", str(tmp_path / "nowhere")).is_error("there is no table at ")


# replay


def test_letters_that_match_go_into_the_buffer_once(letters: str, buffer: str, here: Here) -> None:
    shown = here("dlq", "replay", letters, "--to", buffer, "--reason", "early", "--dry-run")
    assert (shown.status, shown.out.splitlines()[0]) == (0, f"would replay 2 letters into file://{buffer}")
    assert events(buffer) == []
    done = here("dlq", "replay", letters, "--to", buffer, "--reason", "early")
    assert (done.status, done.err, done.out) == (0, "", f"replayed 2 letters into file://{buffer}\n")
    assert events(buffer) == [Record(b'{"id": "x"}', b"k1", [("lang", b"en")]), Record(b'{"id": "y"}')]
    again = json.loads(here("dlq", "replay", letters, "--to", buffer, "--json").out)
    assert (again["replayed"], again["skipped"]) == (2, 2)
    assert len(events(buffer)) == 4
    counts = json.loads(here("dlq", "list", letters, "--json").out)
    assert (counts["letters"], counts["replayed"]) == (4, 4)
    nothing = json.loads(here("dlq", "replay", letters, "--to", buffer, "--json").out)
    assert (nothing["replayed"], nothing["skipped"]) == (0, 4)
    assert len(events(buffer)) == 4


def test_the_timestamp_of_an_event_is_kept(tmp_path: Path, buffer: str, here: Here) -> None:
    url = str(tmp_path / "letters")
    put_letters(open_table(None, url), [{"timestamp": datetime(2026, 1, 31, 11, 0, 0, 5_000, tzinfo=UTC)}])
    here("dlq", "replay", url, "--to", buffer)
    assert events(buffer) == [Record(b"{", timestamp_ms=1_769_857_200_005)]


def test_a_letter_says_where_it_was_replayed_to(letters: str, buffer: str, here: Here) -> None:
    here("dlq", "replay", letters, "--to", buffer, "--stage", "process")
    [letter] = each(here, letters, "--stage", "process")
    assert letter["is_replayed"]
    assert f"replayed   into file://{buffer}, at " in here("dlq", "show", letters, letter["id"]).out
    found = json.loads(here("dlq", "show", letters, letter["id"], "--json").out)
    assert found["replayed"]["done"] is True


def test_letters_that_were_replayed_are_known_after_a_compaction(letters: str, buffer: str, here: Here) -> None:
    here("dlq", "replay", letters, "--to", buffer, "--stage", "process")
    here("table", "compact", letters)
    here("table", "vacuum", letters, "--older-than", "0")
    done = json.loads(here("dlq", "replay", letters, "--to", buffer, "--json").out)
    assert (done["replayed"], done["skipped"]) == (3, 1)
    assert len(events(buffer)) == 4


FIXES = """
from penstock import Record

def repair(letter):
    if letter.stage == "process":
        return None
    if b'"id": 1' in letter.payload:
        raise ValueError("which id?")
    if b"x" in letter.payload:
        return b'{"id": 10}'
    return Record(b'{"id": 11}', key=b"new")

def wrong(letter):
    return 5
"""


def test_a_function_can_repair_letters_and_leave_them(
    letters: str, buffer: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dlq_fixes.py").write_text(FIXES)
    monkeypatch.chdir(tmp_path)
    done = here("dlq", "replay", letters, "--to", buffer, "--fix", "dlq_fixes:repair")
    assert done.status == 1
    assert "replayed 2 letters" in done.out
    assert "1 left by the fix function" in done.out
    assert "ValueError: which id?" in done.out
    assert events(buffer) == [Record(b'{"id": 10}', b"k1", [("lang", b"en")]), Record(b'{"id": 11}', b"new")]
    wrong = json.loads(here("dlq", "replay", letters, "--to", buffer, "--fix", "dlq_fixes:wrong", "--json").out)
    assert (wrong["replayed"], wrong["failed"], wrong["skipped"]) == (0, 2, 2)
    assert "it returned int" in next(iter(wrong["failures"].values()))


FRAGILE = """
from penstock import Record

class Bytes(bytes):
    pass

def leave(letter):
    raise SystemExit(3)

def subclass(letter):
    return Record(Bytes(letter.payload), key=Bytes(b"k"))
"""


def test_a_function_that_exits_fails_for_that_letter_and_one_that_returns_a_kind_of_bytes_does_not(
    letters: str, buffer: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_fixes.py").write_text(FRAGILE)
    monkeypatch.chdir(tmp_path)
    left = json.loads(here("dlq", "replay", letters, "--to", buffer, "--fix", "fragile_fixes:leave", "--json").out)
    assert (left["replayed"], left["failed"]) == (0, 4)
    assert next(iter(left["failures"].values())) == "SystemExit: 3"
    done = json.loads(here("dlq", "replay", letters, "--to", buffer, "--fix", "fragile_fixes:subclass", "--json").out)
    assert (done["replayed"], done["failed"]) == (4, 0)
    assert {event.key for event in events(buffer)} == {b"k"}


def test_a_letter_that_cannot_be_an_event_holds_up_no_other(tmp_path: Path, buffer: str, here: Here) -> None:
    url = str(tmp_path / "letters")
    put_letters(open_table(None, url), [{"headers": [{"key": "h", "value": None}]}, {"payload": b"fine"}])
    done = here("dlq", "replay", url, "--to", buffer)
    assert done.status == 1
    assert "  1 failed, and left" in done.out
    assert [event.value for event in events(buffer)] == [b"fine"]


def test_a_replay_that_is_interrupted_says_that_it_can_be_run_again(
    letters: str, buffer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting_fixes.py").write_text(
        "import sys\n\ndef wait(letter):\n    open('begun', 'w').close()\n    sys.stdin.read()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["dlq", "replay", letters, "--to", buffer, "--fix", "waiting_fixes:wait"]
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until((tmp_path / "begun").exists)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert said.startswith("penstock: interrupted. Run the same command again")


def test_whole_batches_are_no_events(tmp_path: Path, buffer: str, here: Here) -> None:
    url = str(tmp_path / "letters")
    put_letters(open_table(None, url), [{"stage": "fetch", "index": None}, {"payload": None}, {}])
    done = json.loads(here("dlq", "replay", url, "--to", buffer, "--json").out)
    assert (done["replayed"], done["whole_batches"], done["without_payload"]) == (1, 1, 1)
    named = json.loads(here("dlq", "replay", url, "--to", buffer, "--json", "--stage", "fetch").out)
    assert named["replayed"] == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--fix", "nothing"], "--fix must be MODULE:FUNCTION"),
        (["--fix", "no_such_module:fn"], "--fix no_such_module:fn cannot be imported: ModuleNotFoundError"),
        (["--fix", "json:no_such"], "--fix json:no_such is no function"),
        (["--since", "soon"], "--since must be a date such as 2026-01-31"),
    ],
)
def test_a_wrong_word_is_one_line(letters: str, buffer: str, here: Here, words: list[str], problem: str) -> None:
    assert here("dlq", "replay", letters, "--to", buffer, *words).is_error(problem)
    assert events(buffer) == []


def test_a_buffer_that_is_not_there_is_one_line_and_is_not_created(letters: str, here: Here, tmp_path: Path) -> None:
    assert here("dlq", "replay", letters, "--to", str(tmp_path / "none")).is_error("there is no buffer at ")
    assert not (tmp_path / "none").exists()


def test_a_buffer_of_version_1_is_refused(letters: str, here: Here, tmp_path: Path) -> None:
    old = str(tmp_path / "old")
    with Producer(old, ProducerConfig(manifest_format="opendata")) as producer:
        producer.produce(b"x").result()
    assert here("dlq", "replay", letters, "--to", old).is_error(f"file://{old} has a manifest of version 1")
