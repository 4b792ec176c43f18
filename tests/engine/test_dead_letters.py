"""Dead letters of all three origins: one route, before the sink, each once; and what each policy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Record
from penstock.engine import (
    BatchEngine,
    CommitMode,
    DeadLetter,
    DlqPolicy,
    Drop,
    EngineConfig,
    Keep,
    MemoryTransport,
    ParsedBatch,
    WorkBatch,
)
from penstock.engine.transports.contract import Verdict
from penstock.errors import DeadLetterRouteFailed, DeadLettersUnrouted, InvalidInput
from tests.engine.doubles import Faults, Journal, Route, Scripted, Sink, Watched, through

GOOD, INBOUND, BROKEN, DEAD = b'{"is": "good"}', b'{"is": "inbound"}', b"{", b'{"is": "dead"}'


def judge(record: Record) -> Verdict:
    return DeadLetter.of(record, "not wanted", stage="recv") if record.value == INBOUND else Keep


def process(parsed: Any) -> WorkBatch:
    """Sets the dead ones aside, and hands on nothing of what it was given."""
    good = [record for record in parsed.records if record.value != DEAD]
    dead = [DeadLetter.of(record, "dead") for record in parsed.records if record.value == DEAD]
    return WorkBatch(good, dead_letters=dead)


def process_and_hand_on(parsed: Any) -> WorkBatch:
    processed = process(parsed)
    return WorkBatch(processed.records, parsed.commit_tokens, [*parsed.dead_letters, *processed.dead_letters])


class Case:
    """An engine over a transport, with everything that happens in one journal."""

    def __init__(self, *payloads: bytes, dlq: DlqPolicy | None = None, faults: Faults | None = None) -> None:
        self.journal: Journal = []
        self.route = Route(self.journal, faults)
        self.sink = Sink(self.journal, faults)
        self.receiver = Watched(MemoryTransport(filters=[judge]), faults, self.journal)
        self.receiver.send(map(Record, payloads))
        self.engine = BatchEngine(EngineConfig(recv_timeout=0), dlq=dlq or DlqPolicy.route(self.route))

    def run(self, process: Callable[[Any], WorkBatch] = process, **more: Any) -> Case:
        more = {"parse": True, "until_idle": True, **more}
        self.engine.run(self.receiver, process, self.sink, **more)
        return self

    @property
    def committed(self) -> list[tuple[int, ...]]:
        return self.receiver.commits

    def order(self) -> list[str]:
        return [name for name, _ in self.journal if name != "recv"]


@pytest.mark.parametrize("bad", [INBOUND, BROKEN, DEAD], ids=["inbound", "parse", "process"])
def test_a_letter_of_each_origin_is_routed_before_the_sink_is_called(bad: bytes) -> None:
    assert Case(GOOD, bad).run().order() == ["route", "sink", "commit"]


@pytest.mark.parametrize("bad", [INBOUND, BROKEN, DEAD], ids=["inbound", "parse", "process"])
@pytest.mark.parametrize("how", [process, process_and_hand_on])
@pytest.mark.parametrize("sub_block_bytes", [None, 0])
def test_a_letter_of_each_origin_is_routed_once(
    bad: bytes, how: Callable[[Any], WorkBatch], sub_block_bytes: int | None
) -> None:
    assert Case(GOOD, bad, GOOD).run(how, sub_block_bytes=sub_block_bytes).route.payloads == [bad]


def test_a_letter_that_process_returns_twice_is_routed_once() -> None:
    letter = DeadLetter(b"x", "dead")
    case = Case(GOOD).run(lambda parsed: WorkBatch((), dead_letters=[letter, letter]))
    assert case.route.letters == [letter]


def test_letters_that_are_equal_and_not_the_same_are_routed_each() -> None:
    case = Case(GOOD).run(lambda parsed: WorkBatch((), dead_letters=[DeadLetter(b"x", "d"), DeadLetter(b"x", "d")]))
    assert case.route.payloads == [b"x", b"x"]


def test_inbound_letters_are_routed_before_anything_is_processed() -> None:
    case = Case(GOOD, INBOUND)

    def late(parsed: ParsedBatch) -> WorkBatch:
        assert case.route.payloads == [INBOUND]
        return process(parsed)

    assert len(case.run(late).sink.batches) == 1


def test_without_parsing_inbound_letters_are_routed_once_though_process_hands_them_on() -> None:
    assert Case(GOOD, INBOUND).run(through, parse=False).route.payloads == [INBOUND]


@pytest.mark.parametrize(
    ("bad", "stage", "reason"),
    [(INBOUND, "recv", "not wanted"), (BROKEN, "parse", "parse error: .+"), (DEAD, "process", "dead")],
    ids=["inbound", "parse", "process"],
)
def test_a_letter_has_its_stage_and_reason(bad: bytes, stage: str, reason: str) -> None:
    (letter,) = Case(bad).run().route.letters
    assert letter.stage == stage
    with pytest.raises(InvalidInput, match=reason):
        raise InvalidInput(letter.reason)


def test_a_letter_of_the_parser_keeps_key_and_headers() -> None:
    case = Case()
    case.receiver.send([Record(BROKEN, key=b"k", headers=[("h", b"1")])])
    (letter,) = case.run().route.letters
    assert (letter.payload, letter.key, letter.headers) == (BROKEN, b"k", (("h", b"1"),))


def test_letters_of_the_parser_and_of_process_go_in_one_call() -> None:
    case = Case(BROKEN, GOOD, DEAD).run()
    assert [what for name, what in case.journal if name == "route"] == [[BROKEN, DEAD]]


@pytest.mark.parametrize("bad", [INBOUND, BROKEN, DEAD], ids=["inbound", "parse", "process"])
def test_a_block_of_dead_letters_alone_is_committed_and_the_sink_is_not_called(bad: bytes) -> None:
    case = Case(bad).run()
    assert (case.order(), case.committed) == (["route", "commit"], [(0,)])


def test_process_is_not_called_for_a_block_of_dead_letters_alone() -> None:
    case = Case(INBOUND, BROKEN).run(lambda parsed: pytest.fail("it was called"))
    assert case.committed == [(0, 1)]


def test_a_block_of_dead_letters_alone_reaches_a_sink_that_commits() -> None:
    case = Case(INBOUND, BROKEN, DEAD).run(commit=CommitMode.SINK_MANAGED)
    assert (case.sink.tokens, case.sink.values) == ([(0, 1, 2)], [])


@pytest.mark.parametrize("bad", [INBOUND, BROKEN, DEAD], ids=["inbound", "parse", "process"])
def test_a_letter_that_is_rejected_is_an_error_and_nothing_is_committed(bad: bytes) -> None:
    case = Case(GOOD, bad, dlq=DlqPolicy.reject())
    with pytest.raises(DeadLettersUnrouted, match="1 dead letters"):
        case.run()
    assert (case.committed, case.sink.batches) == ([], [])


def test_letters_are_rejected_by_default() -> None:
    receiver = Scripted(WorkBatch((), (1,), [DeadLetter(b"x", "why")]))
    with pytest.raises(DeadLettersUnrouted, match="stage process: why"):
        BatchEngine().run(receiver, through, Sink(), until_idle=True)


@pytest.mark.parametrize("bad", [INBOUND, BROKEN, DEAD], ids=["inbound", "parse", "process"])
def test_a_route_that_raises_is_an_error_and_nothing_is_committed(bad: bytes) -> None:
    case = Case(GOOD, bad, faults=Faults(("route", 0)))
    with pytest.raises(DeadLetterRouteFailed, match="planned at route"):
        case.run()
    assert (case.committed, case.sink.batches) == ([], [])


def test_letters_of_a_route_that_raised_are_not_counted() -> None:
    case = Case(DEAD, faults=Faults(("route", 0)))
    with pytest.raises(DeadLetterRouteFailed):
        case.run()
    assert case.engine.stats.dead_lettered == 0


def test_letters_that_are_discarded_are_dropped_and_counted() -> None:
    case = Case(GOOD, INBOUND, BROKEN, DEAD, dlq=DlqPolicy.discard()).run()
    assert (case.sink.values, case.committed, case.engine.stats.dead_lettered) == ([GOOD], [(0, 1, 2, 3)], 3)


def test_letters_that_are_routed_are_counted_once() -> None:
    assert Case(GOOD, INBOUND, BROKEN, DEAD).run(process_and_hand_on).engine.stats.dead_lettered == 3


def test_a_sink_that_fails_lets_the_letters_come_again() -> None:
    case = Case(GOOD, DEAD, faults=Faults(("sink", 0)))
    with pytest.raises(Exception, match="planned at sink"):
        case.run()
    case.run()
    assert (case.route.payloads, case.committed) == ([DEAD, DEAD], [(0, 1)])


def test_a_route_gets_a_list_of_its_own() -> None:
    case = Case(INBOUND, dlq=DlqPolicy.route(lambda letters: letters.clear()))
    assert case.run().engine.stats.dead_lettered == 1


# The skipping and failing of what cannot be parsed


def test_what_is_skipped_is_counted_as_an_error_and_not_routed() -> None:
    case = Case(GOOD, BROKEN)
    case.engine = BatchEngine(EngineConfig(recv_timeout=0, parse_error_action="skip"))
    case.run()
    assert (case.engine.stats.errors, case.sink.values, case.committed) == (1, [GOOD], [(0, 1)])


# Filters


def test_what_a_filter_drops_is_counted_and_acked() -> None:
    transport, sink = MemoryTransport(filters=[lambda record: Drop]), Sink()
    transport.inject(b"x")
    stats = BatchEngine(EngineConfig(recv_timeout=0)).run(transport, through, sink, until_idle=True)
    assert (stats.filtered, stats.received, transport.committed_sequence, sink.batches) == (1, 1, 0, [])


@pytest.mark.parametrize("verdict", [Keep, Keep()], ids=["class", "object"])
def test_the_first_filter_that_does_not_keep_decides(verdict: Verdict) -> None:
    letter = DeadLetter(b"x", "second")
    transport = MemoryTransport(filters=[lambda record: verdict, lambda record: letter, lambda record: Drop()])
    transport.inject(b"x")
    assert transport.recv(1).dead_letters == (letter,)


def test_a_filter_that_returns_something_else_is_refused() -> None:
    transport = MemoryTransport(filters=[lambda record: True])  # type: ignore[list-item, return-value]
    transport.inject(b"x")
    with pytest.raises(InvalidInput, match="must return Keep, Drop or a DeadLetter, not True"):
        transport.recv(1)


def test_what_is_no_filter_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a filter is a function"):
        MemoryTransport(filters=["no"])  # type: ignore[list-item]


# The values themselves


def test_a_letter_is_of_a_record() -> None:
    letter = DeadLetter.of(Record(b"v", key=b"k", headers=[("h", b"1")]), "why", stage="recv")
    assert letter == DeadLetter(b"v", "why", b"k", (("h", b"1"),), "recv")


def test_a_reason_can_be_written_as_utf_8_whatever_bytes_it_was_made_of() -> None:
    letter = DeadLetter(b"\xff", "no text: " + b"\xff".decode("utf-8", "surrogateescape"), stage="\ud800")
    assert (letter.reason, letter.stage) == ("no text: \\udcff", "\\ud800")


@pytest.mark.parametrize(
    "create",
    [
        lambda: DeadLetter("text", "why"),  # type: ignore[arg-type]
        lambda: DeadLetter(b"x", None),  # type: ignore[arg-type]
        lambda: DeadLetter(b"x", "why", key="k"),  # type: ignore[arg-type]
        lambda: DeadLetter(b"x", "why", headers={"h": b"1"}),  # type: ignore[arg-type]
        lambda: DeadLetter(b"x", "why", stage=3),  # type: ignore[arg-type]
        lambda: DlqPolicy.route("somewhere"),  # type: ignore[arg-type]
        lambda: DlqPolicy.route(None),  # type: ignore[arg-type]
        lambda: DlqPolicy("foo"),
        lambda: DlqPolicy([]),  # type: ignore[arg-type]
        lambda: DlqPolicy("route"),
        lambda: DlqPolicy("reject", print),
    ],
)
def test_what_is_no_letter_and_no_policy_is_refused(create: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        create()
