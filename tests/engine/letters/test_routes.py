"""The contract of the routes that store dead letters: files, a queue and a buffer keep all of a letter, durably."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, Record, open_store
from penstock.buffer import Groups
from penstock.engine import (
    BatchEngine,
    DeadLetter,
    DlqPolicy,
    EngineConfig,
    Filter,
    LetterId,
    MemoryTransport,
    Replay,
    Target,
    WorkBatch,
    open_letters,
    to_buffer,
    to_files,
    to_queue,
)
from penstock.errors import Closed, DeadLetterRouteFailed, InvalidInput, StorageError
from penstock.queue import DurableEventQueue
from tests.engine.letters.stores import (
    KINDS,
    ROUTES,
    SHARED,
    fields_of,
    fields_of_stored,
    letters,
    payloads_at,
    stored_at,
)
from tests.support.processes import Parent, Start, in_forked_child
from tests.support.waiting import together

MANIFEST = "ingest/manifest"

_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_int64 = st.integers(-(1 << 63), (1 << 63) - 1)
_bytes = st.one_of(st.binary(max_size=20), _texts.map(str.encode), st.just(b"line\nof two\r\n\x00"))
_places = st.integers(0, 1 << 62)
_letters = st.builds(
    DeadLetter,
    payload=_bytes,
    reason=_texts,
    key=st.none() | _bytes,
    headers=st.none() | st.lists(st.tuples(st.just("penstock-dead-letter") | _texts, _bytes), max_size=3),
    stage=_texts,
    timestamp_ms=st.none() | _int64,
    identity=st.none() | st.builds(LetterId, _texts, _places, _places, st.just("parse")),
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@settings(max_examples=20)  # each opens a place anew, which syncs
@given(given_letters=st.lists(_letters, max_size=8))
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_comes_back(kind: str, given_letters: list[DeadLetter]) -> None:
    top = tempfile.mkdtemp()
    try:
        with ROUTES[kind](f"{top}/letters", clock=lambda: 1_769_860_800.25) as route:
            route(given_letters)
        found = stored_at(f"{top}/letters") if given_letters else []
        assert fields_of_stored(found) == [fields_of(letter) for letter in given_letters]
        assert {one.at for one in found} <= {datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)}
        assert len({one.id for one in found}) == len(given_letters)
    finally:
        shutil.rmtree(top)


def keep(batch: Any) -> WorkBatch:
    return WorkBatch(batch.records)


def run(route: Any, *payloads: bytes) -> MemoryTransport:
    source = MemoryTransport()
    source.send(map(Record, payloads))
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    engine.run(source, keep, lambda batch: None, parse=True, until_idle=True)
    return source


async def run_async(route: Any, *payloads: bytes) -> MemoryTransport:
    source = MemoryTransport()
    source.send(map(Record, payloads))
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))

    async def sink(batch: object) -> None:
        await asyncio.sleep(0)

    await engine.run_async(source, keep, sink, parse=True, until_idle=True)
    return source


@pytest.mark.parametrize("is_async", [False, True], ids=["run", "run_async"])
def test_the_letters_of_an_engine_are_stored_before_their_block_is_committed(
    kind: str, is_async: bool, tmp_path: Path
) -> None:
    place = tmp_path / "letters"
    payloads = [b'{"good": 1}', b"{", b"\xff", b'{"good": 2}', b"["]
    with ROUTES[kind](place) as route:
        source = asyncio.run(run_async(route, *payloads)) if is_async else run(route, *payloads)
    assert source.committed_sequence == len(payloads) - 1
    found = stored_at(place)
    assert [(one.payload, one.stage, one.index) for one in found] == [
        (b"{", "parse", 1),
        (b"\xff", "parse", 2),
        (b"[", "parse", 4),
    ]
    assert len({one.origin for one in found}) == 1
    assert found[0].reason.startswith("parse error")


def stay_open(parent: Parent, kind: str, place: str) -> None:
    """Store letters through a route that is not closed, and wait to be killed."""
    run(ROUTES[kind](place), b"{", b"[")
    parent.tell("stored")
    parent.wait()


def test_a_route_that_was_never_closed_has_lost_nothing(kind: str, tmp_path: Path, start: Start) -> None:
    child = start(stay_open, kind, str(tmp_path / "letters"))
    child.hear()
    child.kill()
    assert payloads_at(tmp_path / "letters") == [b"{", b"["]


def test_letters_that_come_later_are_behind_those_that_are_there(kind: str, tmp_path: Path) -> None:
    for payload in (b"1", b"2", b"3"):
        with ROUTES[kind](tmp_path / "letters") as route:
            route(letters(payload))
    assert payloads_at(tmp_path / "letters") == [b"1", b"2", b"3"]


def test_no_letters_are_no_work(kind: str, tmp_path: Path) -> None:
    with ROUTES[kind](tmp_path / "letters") as route:
        route([])
        route(letters(b"1"))
        route([])
    assert payloads_at(tmp_path / "letters") == [b"1"]


def test_equal_letters_are_several_letters(kind: str, tmp_path: Path) -> None:
    letter = replace(letters(b"1")[0], identity=LetterId("run", 0, 0, "parse"))
    with ROUTES[kind](tmp_path / "letters", clock=lambda: 1.0) as route:
        route([letter, letter])
        route([letter])
    assert len({one.id for one in stored_at(tmp_path / "letters")}) == 3


@pytest.mark.parametrize("given_letters", [[b"{"], b"{", None, [letters(b"1")[0], "no letter"]])
def test_what_is_no_list_of_letters_is_refused_and_nothing_is_stored(
    kind: str, given_letters: Any, tmp_path: Path
) -> None:
    with ROUTES[kind](tmp_path / "letters") as route:
        with pytest.raises(InvalidInput, match="a route stores a list of DeadLetter, not"):
            route(given_letters)
        route(letters(b"2"))
    assert payloads_at(tmp_path / "letters") == [b"2"]


def test_a_closed_route_says_so_and_fails_the_block(kind: str, tmp_path: Path) -> None:
    route = ROUTES[kind](tmp_path / "letters")
    route.close()
    route.close()
    with pytest.raises(Closed, match=f"to_{kind}"):
        route(letters(b"1"))
    with pytest.raises(DeadLetterRouteFailed, match="is closed"):
        run(route, b"{")


def test_a_forked_child_is_refused_and_does_not_close_it_for_its_parent(kind: str, tmp_path: Path) -> None:
    with ROUTES[kind](tmp_path / "letters") as route:
        route(letters(b"1"))
        raised = in_forked_child(lambda: route(letters(b"2")))
        assert raised.startswith("InvalidInput")
        assert f"to_{kind}" in raised
        assert in_forked_child(route.close) == "nothing was raised"
        route(letters(b"3"))
    assert payloads_at(tmp_path / "letters") == [b"1", b"3"]


def test_threads_share_a_route(kind: str, tmp_path: Path) -> None:
    with ROUTES[kind](tmp_path / "letters") as route:

        def store(thread: int) -> None:
            for number in range(10):
                route(letters(*(b"%d %d %d" % (thread, number, letter) for letter in range(3))))

        together(*(partial(store, thread) for thread in range(4)))
    found = payloads_at(tmp_path / "letters")
    assert len(found) == 120
    assert set(found) == {b"%d %d %d" % place for place in itertools.product(range(4), range(10), range(3))}


def store_many(parent: Parent, kind: str, place: str, name: bytes, blocks: int) -> None:
    """Open a route together with another process, and store blocks."""
    parent.tell("ready")
    parent.wait()
    with ROUTES[kind](place) as route:
        for block in range(blocks):
            route(letters(*(b"%s %d %d" % (name, block, letter) for letter in range(3))))


@pytest.mark.parametrize("kind", SHARED)
def test_two_engines_that_write_to_one_place_lose_nothing_of_each_other(
    kind: str, tmp_path: Path, start: Start
) -> None:
    place, blocks = tmp_path / "letters", 20
    children = [start(store_many, kind, str(place), name, blocks) for name in (b"a", b"b")]
    for child in children:
        child.hear()
    for child in children:
        child.tell("go")
    for child in children:
        child.answer()
    found = payloads_at(place)
    for name in (b"a", b"b"):
        expected = [b"%s %d %d" % (name, block, letter) for block in range(blocks) for letter in range(3)]
        assert [one for one in found if one is not None and one.startswith(name)] == expected


def test_a_queue_that_an_engine_has_open_is_not_read(tmp_path: Path) -> None:
    with to_queue(tmp_path / "letters") as route:
        route(letters(b"1"))
        with pytest.raises(StorageError, match="is open in this process"):
            stored_at(tmp_path / "letters")
        with pytest.raises(StorageError, match="is open in this process"):
            to_queue(tmp_path / "letters")
    assert payloads_at(tmp_path / "letters") == [b"1"]


# --- replay


def replayed(place: Path, events: str) -> int:
    found = open_letters(str(place))
    assert found is not None
    return Replay(found, Target(open_store(events), MANIFEST)).run(Filter()).replayed


def test_letters_are_replayed_once_with_all_that_an_event_has(kind: str, tmp_path: Path) -> None:
    events = str(tmp_path / "events")
    Groups(events).create("audit")
    first = DeadLetter(b"\xff", "no", b"\xfe", [("h", b"\xfd")], timestamp_ms=7)
    with ROUTES[kind](tmp_path / "letters") as route:
        route([first, DeadLetter(b"2", "no")])
    assert [replayed(tmp_path / "letters", events) for _ in range(2)] == [2, 0]
    with ROUTES[kind](tmp_path / "letters") as route:
        route([DeadLetter(b"3", "no")])
    assert replayed(tmp_path / "letters", events) == 1
    with Consumer(events, ConsumerConfig(gc=False, group="audit")) as consumer:
        found = [row for batch in consumer for row in batch.arrow.to_pylist()]
    assert [row["value"] for row in found] == [b"\xff", b"2", b"3"]
    assert (found[0]["key"], found[0]["headers"]) == (b"\xfe", [{"key": "h", "value": b"\xfd"}])
    assert found[0]["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 7000, UTC)


def test_letters_are_not_replayed_into_their_own_buffer(tmp_path: Path) -> None:
    with to_buffer(tmp_path / "letters") as route:
        route(letters(b"1"))
    with pytest.raises(InvalidInput, match=r"these letters are in .* itself"):
        replayed(tmp_path / "letters", str(tmp_path / "letters"))
    assert payloads_at(tmp_path / "letters") == [b"1"]


@pytest.mark.parametrize("part", ["letters", "letters/CURRENT"], ids=["directory", "files in it"])
def test_a_queue_that_is_removed_or_moved_while_it_is_open_takes_no_letters(part: str, tmp_path: Path) -> None:
    with to_queue(tmp_path / "letters") as route:
        route(letters(b"1"))
        (tmp_path / part).rename(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(StorageError, match=r"the queue .*/letters was moved or removed while it was open"):
                route(letters(b"2"))
        (tmp_path / "elsewhere").rename(tmp_path / part)
        route(letters(b"3"))
    assert payloads_at(tmp_path / "letters") == [b"1", b"3"]


def test_reading_letters_in_a_buffer_disturbs_no_consumer_and_finds_what_is_acked(tmp_path: Path) -> None:
    with to_buffer(tmp_path / "letters") as route, Consumer(tmp_path / "letters", ConsumerConfig(gc=False)) as consumer:
        route(letters(b"1", b"2"))
        Groups(tmp_path / "letters").create("audit")  # which keeps what the consumer acks
        for batch in consumer:
            batch.ack()
        assert payloads_at(tmp_path / "letters") == [b"1", b"2"]
        route(letters(b"3"))
        assert [batch.entries for batch in consumer] == [[b"3"]]


# --- places of something else


def make_queue(place: Path) -> None:
    with DurableEventQueue(place) as queue:
        queue.push(b"an order")


def make_buffer(place: Path) -> None:
    with Producer(place) as producer:
        producer.produce(b"an order")


def make_files(place: Path) -> None:
    to_files(place).close()


def make_folder(place: Path) -> None:
    place.mkdir()
    (place / "notes.txt").write_text("mine")


def make_lines(place: Path) -> None:
    place.mkdir()
    (place / "orders.ndjson").write_text('{"order": 1}\n')


def make_file(place: Path) -> None:
    place.write_text("mine")


@pytest.mark.parametrize(
    ("make", "route", "why"),
    [
        (make_queue, to_files, r"is a place of another kind \(queue\): give these dead letters a place"),
        (make_buffer, to_files, r"is a place of another kind \(buffer\)"),
        (make_folder, to_files, "has other files, such as notes.txt: give dead letters a directory of their own"),
        (make_lines, to_files, r"has other lines than dead letters: line 1 of orders\.ndjson: it is no dead letter"),
        (make_file, to_files, "is a file: dead letters need a directory"),
        (make_files, to_queue, r"is a place of another kind \(files\)"),
        (make_buffer, to_queue, r"is a place of another kind \(buffer\)"),
        (make_queue, to_queue, "the queue .* is none of dead letters: its event 0: it is no dead letter"),
        (make_files, to_buffer, r"is a place of another kind \(files\)"),
        (make_queue, to_buffer, r"is a place of another kind \(queue\)"),
        (make_buffer, to_buffer, "the buffer .* is none of dead letters: event 0 of batch 0: it is no dead letter"),
    ],
)
def test_letters_do_not_go_between_other_things(
    make: Callable[[Path], None], route: Callable[[Path], Any], why: str, tmp_path: Path
) -> None:
    make(tmp_path / "place")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match=why):
        route(tmp_path / "place")
    after = sorted(path.name for path in tmp_path.rglob("*"))
    assert after == before or make is make_queue  # RocksDB begins files of its own whenever it opens


@pytest.mark.parametrize("route", [to_files, to_queue])
@pytest.mark.parametrize("place", ["s3://bucket/letters", "", 7])
def test_a_place_that_is_not_on_this_hosts_disk_is_refused(route: Callable[[Any], Any], place: Any) -> None:
    with pytest.raises(InvalidInput, match="place on this host's disk"):
        route(place)


def test_a_buffer_that_is_written_without_headers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="in the format opendata, which has no headers"):
        to_buffer(tmp_path / "letters", ProducerConfig(manifest_format="opendata"))
    with to_buffer(tmp_path / "letters", ProducerConfig(manifest_format="opendata", format="arrow")) as route:
        route(letters(b"1"))
    assert payloads_at(tmp_path / "letters") == [b"1"]


# --- what is at a place


def test_where_there_are_no_letters_there_is_nothing_to_open(tmp_path: Path) -> None:
    assert open_letters(str(tmp_path / "nothing")) is None
    assert open_letters(str(tmp_path)) is None
    assert open_letters("memory://no-letters-here") is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("files", "there are no files of dead letters at"),
        ("queue", "there is no durable queue at"),
        ("buffer", "there is no buffer at .*: no manifest 'ingest/manifest'"),
        ("table", "kind must be one of files, queue, buffer, not 'table'"),
    ],
)
def test_a_kind_that_is_not_there_is_an_error(kind: str, why: str, tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InvalidInput, match=why):
            open_letters(str(place), kind=kind)


def test_a_place_of_several_kinds_is_opened_as_the_one_that_is_asked_for(tmp_path: Path) -> None:
    place = tmp_path / "letters"
    with to_files(place) as route:
        route(letters(b"1"))
    with Producer(place) as producer:
        producer.produce(b"an order")
    with pytest.raises(InvalidInput, match=r"is a place of several kinds, buffer and files: give one of them"):
        open_letters(str(place))
    found = open_letters(str(place), kind="files")
    assert found is not None
    assert [one.payload for one in found.letters()] == [b"1"]


@pytest.mark.parametrize(("make", "kind"), [(make_queue, "queue"), (make_buffer, "buffer")])
def test_reading_other_events_is_an_error_that_says_what_they_are(
    make: Callable[[Path], None], kind: str, tmp_path: Path
) -> None:
    make(tmp_path / "place")
    with pytest.raises(InvalidInput, match=f"the {kind} .* is none of dead letters"):
        stored_at(tmp_path / "place")


def test_a_buffer_is_found_below_another_manifest_path(fresh_name: str) -> None:
    with to_buffer(f"memory://{fresh_name}", ProducerConfig(manifest_path="letters/manifest")) as route:
        route(letters(b"1"))
    assert open_letters(f"memory://{fresh_name}") is None
    found = open_letters(f"memory://{fresh_name}", manifest_path="letters/manifest")
    assert found is not None
    assert [one.payload for one in found.letters()] == [b"1"]


def test_the_id_of_a_letter_stays(kind: str, tmp_path: Path) -> None:
    def ids() -> Sequence[str]:
        return [one.id for one in stored_at(tmp_path / "letters")]

    with ROUTES[kind](tmp_path / "letters") as route:
        route(letters(b"1", b"2"))
    before = ids()
    with ROUTES[kind](tmp_path / "letters") as route:
        route(letters(b"3"))
    assert ids()[:2] == before
