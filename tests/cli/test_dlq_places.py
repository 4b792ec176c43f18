"""`penstock dlq` on what the engine's routes store: files, a queue and a buffer, with the options that tables have."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Producer, ProducerConfig, Record, open_store, peek
from penstock.buffer import Groups
from penstock.engine import DeadLetter, LetterId, to_buffer, to_files, to_queue
from penstock.queue import DurableEventQueue
from tests.support.command import MAIN, Here, storage_options
from tests.support.servers import BUCKET, S3Server

ROUTES: dict[str, Any] = {"files": to_files, "queue": to_queue, "buffer": to_buffer}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
RUN = "5e0c7a"
FIXES = """
def repair(letter):
    if letter.origin is None:
        return None
    if letter.payload == b"[":
        raise ValueError("no idea")
    return letter.payload + b"}"
"""


@pytest.fixture(params=list(ROUTES))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def letters(kind: str, tmp_path: Path) -> str:
    def identity(index: int) -> LetterId:
        return LetterId(RUN, 7, index, "parse")

    with ROUTES[kind](tmp_path / "letters", clock=lambda: NOON) as route:
        route(
            [
                DeadLetter(
                    b'{"id": 1', "it ends too early", b"k1", [("lang", b"en")], "parse", 5, identity=identity(0)
                ),
                DeadLetter(b"[", "it ends too early", stage="parse", identity=identity(2)),
            ]
        )
    with ROUTES[kind](tmp_path / "letters", clock=lambda: NOON + 60) as route:
        route([DeadLetter(b"\x00\xff", "no UTF-8")])
    return str(tmp_path / "letters")


@pytest.fixture
def events(tmp_path: Path) -> str:
    Groups(tmp_path / "events").create("audit")
    return str(tmp_path / "events")


def each(here: Here, where: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(here("dlq", "list", where, "--each", "--json", *words).out)
    return found


def test_letters_are_counted_by_reason(letters: str, here: Here) -> None:
    shown = here("dlq", "list", letters)
    assert (shown.status, shown.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines() if line[0] == "│"]
    assert [row[:5] for row in rows] == [
        ["2", "0", "parse", "it ends too early", "2026-01-31 12:00:00 UTC"],
        ["1", "0", "process", "no UTF-8", "2026-01-31 12:01:00 UTC"],
    ]
    assert shown.out.endswith("3 dead letters, 0 replayed\n")


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--reason", "early"], 2),
        (["--reason", "^no .*8$"], 1),
        (["--stage", "process"], 1),
        (["--since", "2026-01-31T12:01:00Z"], 1),
        (["--since", "2 hours"], 0),
    ],
)
def test_letters_are_chosen_as_those_of_a_table_are(letters: str, here: Here, words: list[str], count: int) -> None:
    assert json.loads(here("dlq", "list", letters, "--json", *words).out)["letters"] == count
    assert len(each(here, letters, *words)) == count


def test_a_letter_is_shown_with_all_that_it_has(letters: str, here: Here) -> None:
    [first, *_] = each(here, letters)
    assert {name: first[name] for name in ("origin", "sequence", "index", "timestamp_ms", "key", "headers")} == {
        "origin": RUN,
        "sequence": 7,
        "index": 0,
        "timestamp_ms": 5,
        "key": "k1",
        "headers": [{"name": "lang", "value": "en"}],
    }
    shown = here("dlq", "show", letters, first["id"][:8])
    assert shown.out.splitlines() == [
        f"id         {first['id']}",
        "set aside  2026-01-31 12:00:00 UTC",
        "stage      parse",
        "reason     it ends too early",
        f"from       block 7, event 0, of the engine's run {RUN}",
        "key        k1",
        "header     lang: en",
        "payload    8 bytes",
        '{"id": 1',
    ]
    assert here("dlq", "show", letters, each(here, letters)[2]["id"], "--raw").raw == b"\x00\xff"


@pytest.mark.parametrize(
    ("beginning", "why"),
    [("", "there is no letter with the id ''"), ("00", "64 letters have ids that begin with '00'")],
)
def test_an_id_that_many_letters_have_does_not_bring_all_into_memory(
    beginning: str, why: str, tmp_path: Path, here: Here
) -> None:
    with to_files(tmp_path / "letters") as route:
        route([DeadLetter(b"x" * (1 << 20), "no")])
    [file] = (tmp_path / "letters").glob("*.ndjson")
    line = file.read_bytes()
    letter_id = json.loads(line)["id"].encode()
    file.write_bytes(b"".join(line.replace(letter_id, b"%020x" % number) for number in range(64)))
    tracemalloc.start()
    try:
        assert here("dlq", "show", str(tmp_path / "letters"), beginning).is_error(why)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_letters_are_replayed_once_and_marked(letters: str, events: str, here: Here) -> None:
    words = ["dlq", "replay", letters, "--to", events, "--reason", "early"]
    assert here(*words, "--dry-run").out.startswith("would replay 2 letters into ")
    assert peek(events) == []
    assert here(*words).out.startswith("replayed 2 letters into ")
    assert here(*words).out.splitlines()[1:] == ["  2 replayed before, and left out"]
    assert peek(events) == [Record(b'{"id": 1', b"k1", (("lang", b"en"),), 5), Record(b"[")]
    assert [letter["is_replayed"] for letter in each(here, letters)] == [True, True, False]
    shown = here("dlq", "show", letters, each(here, letters)[0]["id"])
    assert "replayed   into" in shown.out


def test_a_fix_function_mends_letters_and_leaves_others(
    letters: str, events: str, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mend_letters.py").write_text(FIXES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = here("dlq", "replay", letters, "--to", events, "--fix", "mend_letters:repair", "--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert [found[name] for name in ("matching", "replayed", "left_by_fix", "failed")] == [3, 1, 1, 1]
    assert list(found["failures"].values()) == ["ValueError: no idea"]
    assert [record.value for record in peek(events)] == [b'{"id": 1}']


@pytest.mark.parametrize("kind", ["files", "buffer"])
def test_letters_are_listed_and_replayed_while_an_engine_stores_more(
    kind: str, letters: str, events: str, here: Here
) -> None:
    with ROUTES[kind](letters) as route:
        route([DeadLetter(b"4", "another")])
        assert [letter["reason"] for letter in each(here, letters)][-1] == "another"
        assert here("dlq", "replay", letters, "--to", events).out.startswith("replayed 4 letters")
        route([DeadLetter(b"5", "another")])
        assert here("dlq", "replay", letters, "--to", events).out.startswith("replayed 1 letter ")


def test_a_queue_that_an_engine_has_open_is_refused(tmp_path: Path, events: str, here: Here) -> None:
    with to_queue(tmp_path / "letters") as route:
        route([DeadLetter(b"1", "no")])
        for words in (["list"], ["replay", "--to", events]):
            answer = here("dlq", words[0], str(tmp_path / "letters"), *words[1:])
            assert answer.is_error(f"the queue in {tmp_path / 'letters'} is open in this process already")
    assert here("dlq", "replay", str(tmp_path / "letters"), "--to", events).out.startswith("replayed 1 letter ")


def test_listing_and_showing_files_and_buffers_writes_nothing(tmp_path: Path, here: Here) -> None:
    for name in ("files", "buffer"):
        place = str(tmp_path / name)
        with ROUTES[name](place) as route:
            route([DeadLetter(b"1", "no")])
        before = sorted(tmp_path.rglob("*"))
        [letter] = each(here, place)
        here("dlq", "show", place, letter["id"])
        assert sorted(tmp_path.rglob("*")) == before


# --- where there are none


def test_a_place_without_letters_is_an_error(tmp_path: Path, events: str, here: Here) -> None:
    for words in (["list"], ["show", "--", "1"], ["replay", "--to", events]):
        answer = here("dlq", words[0], str(tmp_path / "nothing"), *words[1:])
        assert answer.is_error("there is no ")
        assert "nothing" in answer.err
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("files", "there are no files of dead letters at "),
        ("queue", "there is no durable queue at "),
        ("buffer", "there is no buffer at "),
        ("parquet", "there is no table at "),
        ("tables", "--kind must be one of files, queue, buffer, parquet, delta, iceberg, not 'tables'"),
    ],
)
def test_a_kind_that_is_not_there_is_an_error(asked: str, why: str, tmp_path: Path, here: Here) -> None:
    (tmp_path / "empty").mkdir()
    assert here("dlq", "list", str(tmp_path / "empty"), "--kind", asked).is_error(why)


@pytest.mark.parametrize("asked", ["files", "queue", "buffer"])
def test_letters_are_not_read_as_another_kind(asked: str, kind: str, letters: str, here: Here) -> None:
    answer = here("dlq", "list", letters, "--kind", asked)
    assert answer.status == (asked != kind)
    assert answer.is_error("there ") or asked == kind


def test_a_place_of_two_kinds_asks_for_one(tmp_path: Path, here: Here) -> None:
    place = str(tmp_path / "letters")
    with to_files(place) as route:
        route([DeadLetter(b"1", "no")])
    with Producer(place) as producer:
        producer.produce(b"an order")
    assert here("dlq", "list", place).is_error(f"{place} is a place of several kinds, buffer and files: give one")
    assert here("dlq", "list", place, "--kind", "files").out.endswith("1 dead letter, 0 replayed\n")
    assert here("dlq", "list", place, "--kind", "buffer").is_error("the buffer ")


def test_other_events_are_no_dead_letters(tmp_path: Path, events: str, here: Here) -> None:
    with DurableEventQueue(tmp_path / "orders") as queue:
        queue.push(b"an order")
    answer = here("dlq", "replay", str(tmp_path / "orders"), "--to", events)
    assert answer.is_error(f"the queue {tmp_path / 'orders'} is none of dead letters: its event 0")
    assert peek(events) == []


def test_letters_are_not_replayed_into_their_own_buffer(tmp_path: Path, here: Here) -> None:
    place = str(tmp_path / "letters")
    with to_buffer(place) as route:
        route([DeadLetter(b"1", "no")])
    assert here("dlq", "replay", place, "--to", place).is_error("these letters are in ")


def test_the_manifest_of_a_buffer_of_letters_may_be_elsewhere(tmp_path: Path, events: str, here: Here) -> None:
    place = str(tmp_path / "letters")
    with to_buffer(place, ProducerConfig(manifest_path="dlq/manifest")) as route:
        route([DeadLetter(b"1", "no")])
    assert here("dlq", "list", place).is_error("there is no table")
    assert len(each(here, place, "--letters-path", "dlq/manifest")) == 1
    done = here("dlq", "replay", place, "--letters-path", "dlq/manifest", "--to", events)
    assert done.out.startswith("replayed 1 letter ")


def test_the_marks_of_a_buffer_in_an_object_store_are_below_its_url(fresh_name: str, here: Here) -> None:
    place, events = f"memory://{fresh_name}/letters", f"memory://{fresh_name}/events"
    Groups(events).create("audit")
    with to_buffer(place) as route:
        route([DeadLetter(b"1", "no")])
    words = ["dlq", "replay", place, "--to", events]
    assert [here(*words).out.splitlines()[0] for _ in range(2)] == [
        f"replayed 1 letter into {events}",
        f"replayed 0 letters into {events}",
    ]
    marks = [found.path for found in open_store(f"{place}/_replays").list_objects("")]
    assert sorted(marks) == ["ledger", "plans/000000000000"]
    assert [letter["is_replayed"] for letter in each(here, place)] == [True]
    with to_buffer(place) as route:  # beside the marks
        route([DeadLetter(b"2", "no")])
    assert here(*words).out.startswith("replayed 1 letter ")


def test_letters_in_a_bucket_are_replayed_with_storage_options(
    s3_server: S3Server, fresh_name: str, events: str, here: Here
) -> None:
    place = f"s3://{BUCKET}/{fresh_name}"
    with to_buffer(open_store(place, **s3_server.options)) as route:
        route([DeadLetter(b"1", "no")])
        options = storage_options(s3_server.options)
        assert here("dlq", "list", place, *options).out.endswith("1 dead letter, 0 replayed\n")
        for replayed in ("1 letter ", "0 letters "):
            assert here("dlq", "replay", place, "--to", events, *options).out.startswith(f"replayed {replayed}")
    assert [record.value for record in peek(events)] == [b"1"]


def test_damaged_files_are_named(tmp_path: Path, here: Here) -> None:
    with to_files(tmp_path / "letters") as route:
        route([DeadLetter(b"1", "no")])
    [file] = (tmp_path / "letters").glob("*.ndjson")
    file.write_bytes(file.read_bytes() + b"{}\n")
    shown = here("dlq", "list", str(tmp_path / "letters"))
    assert shown.is_error(f"line 2 of {file.name}: it is no dead letter")
    assert f"mend the line, or move the file out of {tmp_path / 'letters'}" in shown.err


@pytest.mark.parametrize("kind", [[], ["--kind", "files"]], ids=["no kind", "files"])
def test_one_file_of_letters_is_no_place(kind: list[str], tmp_path: Path, here: Here) -> None:
    with to_files(tmp_path / "letters") as route:
        route([DeadLetter(b"1", "no")])
    [file] = (tmp_path / "letters").glob("*.ndjson")
    assert here("dlq", "list", str(file), *kind).is_error(
        f"{file} is a file: give the directory that dead letters are in"
    )


def test_a_catalog_goes_with_a_table(letters: str, kind: str, here: Here) -> None:
    answer = here("dlq", "list", letters, "--kind", kind, "--catalog", "warehouse=/data/lake")
    assert answer.is_error(f"--catalog goes with the name of an Iceberg table, not with --kind {kind}")


def test_no_pyspark_is_needed(letters: str, tmp_path: Path) -> None:
    """Neither to be imported nor to be there."""
    code = "import sys, importlib.util as util; find = util.find_spec; sys.modules['pyspark'] = None\n"
    code += "util.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
    for where, status in ((letters, 0), (str(tmp_path / "nothing"), 1)):
        done = subprocess.run(
            [sys.executable, "-c", code + MAIN, "dlq", "list", where], capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
    assert "there are no dead letters at" in done.stderr
    assert "tables need PySpark" in done.stderr
