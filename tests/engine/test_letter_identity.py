"""The identity of dead letters: whatever `process` does with them, each is routed once, or dropped once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.engine import (
    BatchEngine,
    DeadLetter,
    DlqPolicy,
    EngineConfig,
    Keep,
    LetterId,
    MemoryTransport,
    ParsedBatch,
    WorkBatch,
)
from penstock.errors import InvalidInput, ProcessFailed
from tests.engine.doubles import Route, Scripted, Sink
from tests.support.memory_readings import reading

GOOD, BROKEN = b'{"is": "good"}', b"{"
WAYS: dict[str, Callable[[DeadLetter], list[DeadLetter]]] = {
    "not returned": lambda letter: [],
    "handed on": lambda letter: [letter],
    "handed on twice": lambda letter: [letter, letter],
    "copied": lambda letter: [copy.copy(letter)],
    "copied deeply": lambda letter: [copy.deepcopy(letter)],
    "pickled": lambda letter: [pickle.loads(pickle.dumps(letter))],
    "replaced by its equal": lambda letter: [replace(letter)],
    "handed on and copied": lambda letter: [letter, copy.copy(letter)],
}


def enriched(letter: DeadLetter) -> DeadLetter:
    return replace(letter, reason=f"enriched: {letter.reason}", headers=[("team", b"a")])


def routed_by(process: Callable[[Any], WorkBatch], *payloads: bytes, **more: Any) -> tuple[Route, BatchEngine]:
    route = Route()
    source = MemoryTransport()
    source.send(map(Record, payloads))
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    engine.run(source, process, Sink(), until_idle=True, **{"parse": True, **more})
    assert source.committed_sequence == len(payloads) - 1
    return route, engine


def returning(change: Callable[[DeadLetter], list[DeadLetter]]) -> Callable[[Any], WorkBatch]:
    def process(batch: Any) -> WorkBatch:
        return WorkBatch(batch.records, dead_letters=[new for letter in batch.dead_letters for new in change(letter)])

    return process


@pytest.mark.parametrize("way", WAYS)
def test_a_parse_letter_is_routed_once_as_it_was(way: str) -> None:
    route, engine = routed_by(returning(WAYS[way]), GOOD, BROKEN, BROKEN)
    assert [letter.reason[:12] for letter in route.letters] == ["parse error:"] * 2
    assert engine.stats.dead_lettered == 2


@pytest.mark.parametrize(
    "also",
    [
        lambda letter: [enriched(letter)],
        lambda letter: [letter, enriched(letter)],
        lambda letter: [enriched(letter), letter],
        lambda letter: [enriched(letter), copy.copy(enriched(letter))],
    ],
    ids=["alone", "after the original", "before the original", "twice"],
)
def test_an_enriched_letter_is_routed_once_instead_of_the_original(also: Any) -> None:
    route, _ = routed_by(returning(also), GOOD, BROKEN)
    (letter,) = route.letters
    assert (letter.reason[:22], letter.headers) == ("enriched: parse error:", (("team", b"a"),))


def test_a_letter_that_is_dropped_on_purpose_is_counted_and_not_routed() -> None:
    before = reading("penstock_engine_dropped_letters_total")

    def drop(parsed: Any) -> WorkBatch:
        first, second = parsed.dead_letters
        assert parsed.drop_letter(first)
        assert parsed.drop_letter(copy.copy(first))  # once more is still once
        assert parsed.dead_letters == (second,)
        return WorkBatch(parsed.records, dead_letters=[first, enriched(first)])

    route, engine = routed_by(drop, GOOD, BROKEN, b"[")
    assert route.payloads == [b"["]
    assert (engine.stats.dead_lettered, engine.stats.dropped_letters, engine.stats.errors) == (1, 1, 2)
    assert reading("penstock_engine_dropped_letters_total") - before == 1


@pytest.mark.parametrize("parse", [False, True])
def test_an_inbound_letter_is_routed_before_process_which_can_neither_change_nor_drop_it(parse: bool) -> None:
    route, dropped = Route(), list[bool]()
    block = WorkBatch([Record(GOOD)], (0,), [DeadLetter(b"x", "bad", stage="recv")])

    def process(batch: Any) -> WorkBatch:
        (letter,) = batch.dead_letters
        dropped.append(batch.drop_letter(letter))
        copies = [letter, copy.copy(letter), enriched(letter), pickle.loads(pickle.dumps(letter))]
        return WorkBatch(batch.records, dead_letters=copies)

    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    engine.run(Scripted(block), process, Sink(), until_idle=True, parse=parse)
    assert ([letter.reason for letter in route.letters], dropped) == (["bad"], [False])
    assert engine.stats.dropped_letters == 0


def test_a_letter_of_an_earlier_block_is_not_routed_again() -> None:
    kept = list[DeadLetter]()

    def process(parsed: Any) -> WorkBatch:
        kept.extend(parsed.dead_letters)
        return WorkBatch(parsed.records, dead_letters=[copy.copy(letter) for letter in kept])

    route = Route()
    blocks = [WorkBatch([Record(GOOD), Record(b"{" * size)], (size,)) for size in (1, 2, 3)]
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    engine.run(Scripted(*blocks), process, Sink(), until_idle=True, parse=True)
    assert route.payloads == [b"{", b"{{", b"{{{"]


def test_letters_of_a_parser_that_process_calls_itself_are_routed() -> None:
    def process(batch: WorkBatch) -> WorkBatch:
        parsed = ParsedBatch.parse(batch)
        return WorkBatch(parsed.records, dead_letters=[copy.copy(letter) for letter in parsed.dead_letters * 2])

    assert routed_by(process, GOOD, BROKEN, b"[", parse=False)[0].payloads == [BROKEN, b"["]


def test_letters_at_the_same_place_of_several_parsers_are_letters_each() -> None:
    def process(batch: WorkBatch) -> WorkBatch:
        parsers = [ParsedBatch.parse(WorkBatch([record])) for record in batch.records]
        return WorkBatch([], dead_letters=[letter for parsed in parsers for letter in parsed.dead_letters])

    assert routed_by(process, BROKEN, b"[", parse=False)[0].payloads == [BROKEN, b"["]


def test_a_letter_of_a_parser_that_process_calls_itself_can_be_dropped() -> None:
    def process(batch: WorkBatch) -> WorkBatch:
        parsed = ParsedBatch.parse(batch)
        first, second = parsed.dead_letters
        assert parsed.drop_letter(first)
        assert batch.drop_letter(second)
        return WorkBatch(parsed.records, dead_letters=[first, second])

    route, engine = routed_by(process, GOOD, BROKEN, b"[", parse=False)
    assert (route.letters, engine.stats.dropped_letters) == ([], 2)


def test_a_letter_of_a_filter_that_parses_is_not_taken_for_one_of_the_parser() -> None:
    def no_cats(record: Record) -> type[Keep] | DeadLetter:
        return DeadLetter.of(record, "a cat", stage="parse") if record.value == b"cat" else Keep

    source, route = MemoryTransport(filters=[no_cats]), Route()
    source.send(map(Record, [BROKEN, b"cat", GOOD]))
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    engine.run(source, lambda batch: WorkBatch(batch.records), Sink(), until_idle=True, parse=True)
    assert route.payloads == [b"cat", BROKEN]


def test_a_letter_of_an_earlier_block_cannot_be_dropped_any_more() -> None:
    kept, dropped = list[DeadLetter](), list[bool]()

    def process(parsed: Any) -> WorkBatch:
        dropped.extend(parsed.drop_letter(letter) for letter in kept)
        kept.extend(parsed.dead_letters)
        return WorkBatch(parsed.records)

    blocks = [WorkBatch([Record(GOOD), Record(BROKEN)], (number,)) for number in range(2)]
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.discard())
    stats = engine.run(Scripted(*blocks), process, Sink(), until_idle=True, parse=True)
    assert (dropped, stats.dead_lettered, stats.dropped_letters) == ([False], 2, 0)


def test_what_was_dropped_in_a_block_that_failed_comes_again() -> None:
    calls = list[int]()

    def process(parsed: Any) -> WorkBatch:
        calls.append(1)
        if len(calls) == 1:
            parsed.drop_letter(parsed.dead_letters[0])
            raise ValueError("not now")
        return WorkBatch(parsed.records)

    source, route = MemoryTransport(), Route()
    source.send(map(Record, [GOOD, BROKEN]))
    engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=DlqPolicy.route(route))
    with pytest.raises(ProcessFailed):
        engine.run(source, process, Sink(), until_idle=True, parse=True)
    engine.run(source, process, Sink(), until_idle=True, parse=True)
    assert (route.payloads, engine.stats.dropped_letters) == ([BROKEN], 0)


def test_a_batch_that_is_not_the_one_of_process_drops_nothing() -> None:
    def process(parsed: Any) -> WorkBatch:
        with pytest.raises(InvalidInput, match="call drop_letter of the one that process was given"):
            WorkBatch(parsed.records).drop_letter(parsed.dead_letters[0])
        return WorkBatch(parsed.records)

    assert routed_by(process, GOOD, BROKEN)[0].payloads == [BROKEN]


def test_letters_made_of_one_pattern_are_letters_each() -> None:
    pattern = DeadLetter(b"", "bad")

    def process(batch: WorkBatch) -> WorkBatch:
        return WorkBatch((), dead_letters=[replace(pattern, payload=record.value) for record in batch.records])

    assert routed_by(process, b"1", b"2", parse=False)[0].payloads == [b"1", b"2"]


def test_what_is_no_letter_of_the_block_cannot_be_dropped() -> None:
    batch = WorkBatch([Record(b"a")])
    with pytest.raises(InvalidInput, match="not a letter that is new"):
        batch.drop_letter(DeadLetter(b"a", "new"))
    with pytest.raises(InvalidInput, match="not a str"):
        batch.drop_letter("a")  # type: ignore[arg-type]


def test_an_identity_is_no_part_of_equality_hash_or_text() -> None:
    letter = DeadLetter(b"a", "bad", b"k", [("h", b"1")], "parse", 7)
    known = replace(letter, identity=LetterId("run", 1, 2, "parse"))
    assert (letter, hash(letter), repr(letter)) == (known, hash(known), repr(known))
    with pytest.raises(InvalidInput, match="identity"):
        DeadLetter(b"a", "bad", identity=3)  # type: ignore[arg-type]


ACTIONS = [
    "not returned",
    "handed on",
    "copied",
    "pickled",
    "enriched",
    "enriched beside it",
    "dropped",
    "dropped, too",
]


@given(
    records=st.lists(st.sampled_from(["good", "dead", *ACTIONS]), min_size=1, max_size=12),
    sub_block_bytes=st.sampled_from([None, 0, 30]),
    per_block=st.integers(1, 5),
)
def test_whatever_process_does_each_letter_is_routed_once_or_dropped_once(
    records: list[str], sub_block_bytes: int | None, per_block: int
) -> None:
    """A model: record `n` is good, or dead by `process`, or a parse error with which `process` does something."""

    def process(parsed: Any) -> WorkBatch:
        good = [record for record in parsed.records if b"dead" not in record.value]
        letters = [DeadLetter.of(record, "dead") for record in parsed.records if b"dead" in record.value]
        for letter in parsed.dead_letters:
            match records[int(letter.key)]:
                case "handed on":
                    letters.append(letter)
                case "copied":
                    letters += [copy.copy(letter), copy.deepcopy(letter)]
                case "pickled":
                    letters.append(pickle.loads(pickle.dumps(letter)))
                case "enriched":
                    letters.append(enriched(letter))
                case "enriched beside it":
                    letters += [enriched(letter), letter]
                case "dropped":
                    parsed.drop_letter(letter)
                case "dropped, too":
                    parsed.drop_letter(copy.copy(letter))
                    letters += [letter, enriched(letter)]
        return WorkBatch(good, dead_letters=letters)

    route, sink, source = Route(), Sink(), MemoryTransport()
    whole = [b'{"n": "%s"}' % what.encode() if what in ("good", "dead") else b"{" for what in records]
    source.send(Record(value, key=b"%d" % n) for n, value in enumerate(whole))
    engine = BatchEngine(EngineConfig(max_records=per_block, recv_timeout=0), dlq=DlqPolicy.route(route))
    stats = engine.run(source, process, sink, parse=True, sub_block_bytes=sub_block_bytes, until_idle=True)

    # `process` is not called for a piece in which nothing parses: the engine routes its letters as they are.
    def is_seen(number: int) -> bool:
        start = number - number % per_block
        block = range(start, min(start + per_block, len(records)))
        if sub_block_bytes is None:
            return any(records[one] in ("good", "dead") for one in block)
        return any(one == number for one in seen)

    seen = [int(letter.key or b"") for letter in route.letters if letter.reason.startswith("enriched")]
    routed = sorted(int(letter.key or b"") for letter in route.letters)
    assert len(routed) == len(set(routed))
    dropped = {number for number in range(len(records)) if records[number] != "good"} - set(routed)
    assert all(records[number].startswith("dropped") for number in dropped)
    assert stats.dropped_letters == len(dropped)
    assert stats.dead_lettered == len(routed)
    assert stats.errors == sum(what not in ("good", "dead") for what in records)
    if sub_block_bytes is None:
        for number, what in enumerate(records):
            if is_seen(number):
                assert (number in dropped) == what.startswith("dropped")
                assert (number in seen) == what.startswith("enriched")
