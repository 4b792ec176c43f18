"""Whatever fails in a block, on whatever transport: nothing after the last good block is committed, and it comes again.

Four blocks of three; the second fails. Each case is played once, and looked at from several sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.engine import BatchEngine, CommitMode, DeadLetter, DlqPolicy, EngineConfig, Keep, MemoryGuard, WorkBatch
from penstock.engine.transports.contract import Verdict
from penstock.errors import (
    CommitFailed,
    DeadLetterRouteFailed,
    DeadLettersUnrouted,
    EngineError,
    ParseFailed,
    ProcessFailed,
    ReceiveFailed,
    SinkFailed,
)
from penstock.records import Record
from tests.engine.doubles import Fault, Faults, Journal, Route, Sink, Watched, holding, regulated, through
from tests.engine.sources import PER_BLOCK, SOURCES

PAYLOADS = [b'{"n": %d}' % number for number in range(4 * PER_BLOCK)]
BROKEN = b"{"  # takes the place of the fifth where parsing is to fail
FIFTH = 4


@dataclass(frozen=True)
class Place:
    """Where the second block fails, and the error that this is."""

    error: type[EngineError]
    says: str
    cause: type[BaseException] | None = Fault
    fault: tuple[str, int] | None = None
    dead: str | None = None
    rejects: bool = False
    parses: bool = False
    sub_block_bytes: int | None = None


PLACES = {
    "recv": Place(ReceiveFailed, "the receiver failed", fault=("recv", 1)),
    "route of an inbound dead letter": Place(
        DeadLetterRouteFailed, "the route of 1 dead letters", fault=("route", 0), dead="recv"
    ),
    "inbound dead letter rejected": Place(
        DeadLettersUnrouted, "of stage recv: it is bad", cause=None, dead="recv", rejects=True
    ),
    "parse": Place(ParseFailed, "record 1 of the block", cause=None, parses=True),
    "process": Place(ProcessFailed, r"the processing of WorkBatch\(3 records", fault=("process", 1)),
    "route of a dead letter of process": Place(
        DeadLetterRouteFailed, "the route of 1 dead letters", fault=("route", 0), dead="process"
    ),
    "dead letter of process rejected": Place(
        DeadLettersUnrouted, "of stage process: it is bad", cause=None, dead="process", rejects=True
    ),
    "sink": Place(SinkFailed, r"the sink, given WorkBatch\(3 records", fault=("sink", 1)),
    "sink of a piece in the middle": Place(
        SinkFailed, r"the sink, given WorkBatch\(1 records", fault=("sink", 4), sub_block_bytes=0
    ),
    "process of a piece in the middle": Place(
        ProcessFailed, r"the processing of WorkBatch\(1 records", fault=("process", 4), sub_block_bytes=0
    ),
    "commit": Place(CommitFailed, r"the commit of WorkBatch\(3 records", fault=("commit", 1)),
    "commit after pieces": Place(
        CommitFailed, r"the commit of WorkBatch\(3 records", fault=("commit", 1), sub_block_bytes=0
    ),
}  # fmt: skip


@dataclass
class Outcome:
    """What was seen of one case."""

    place: Place
    commit: CommitMode
    error: EngineError
    recvs: int
    committed: int
    commits: int
    leased: int
    leased_after_all: int
    next_run: list[bytes]
    restart: list[bytes] | None
    payloads: list[bytes]


def play(source_name: str, place: Place, commit: CommitMode, directory: Any) -> Outcome:
    payloads = [BROKEN if place.parses and at == FIFTH else payload for at, payload in enumerate(PAYLOADS)]
    source = SOURCES[source_name](directory, payloads)
    guard = MemoryGuard(1 << 30)
    faults = Faults(*([place.fault] if place.fault else []))
    journal: Journal = []
    is_over = False

    def judge(record: Record) -> Verdict:
        is_bad = place.dead == "recv" and record.value == payloads[FIFTH] and not is_over
        return DeadLetter.of(record, "it is bad", stage="recv") if is_bad else Keep

    def process(batch: Any) -> WorkBatch:
        faults.meet("process")
        dead = [record for record in batch.records if place.dead == "process" and record.value == payloads[FIFTH]]
        good = [record for record in batch.records if record not in dead]
        return WorkBatch(good, dead_letters=[DeadLetter.of(record, "it is bad") for record in dead])

    config = EngineConfig(max_records=PER_BLOCK, recv_timeout=0, parse_error_action="fail_batch")
    dlq = DlqPolicy.reject() if place.rejects else DlqPolicy.route(Route(journal, faults))
    engine = BatchEngine(config, dlq=dlq, regulation=regulated(guard, start_bytes=1000, max_bytes=1000))
    receiver = Watched(source.open([judge] if place.dead == "recv" else []), faults, journal)
    sink = Sink(journal, faults, receiver if commit is CommitMode.SINK_MANAGED else None)
    with pytest.raises(EngineError) as caught:
        engine.run(
            receiver,
            process,
            sink,
            commit=commit,
            parse=place.parses,
            sub_block_bytes=place.sub_block_bytes,
            until_idle=True,
        )
    recvs, committed, leased, commits = receiver.recvs, source.committed(), guard.current_bytes, len(receiver.commits)
    is_over = True

    # Nothing is committed from here on, so that a restart finds what the next run has found.
    again = Sink()
    engine.run(receiver, through, again, commit=CommitMode.SINK_MANAGED, until_idle=True)
    restart: list[bytes] | None = None
    if source.survives:
        after = Sink()
        engine.run(source.open(), through, after, commit=CommitMode.SINK_MANAGED, until_idle=True)
        restart = after.values
    source.close()
    return Outcome(
        place, commit, caught.value, recvs, committed, commits, leased, guard.current_bytes, again.values, restart,
        payloads,
    )  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((source, name, commit), id=f"{source}-{name}-{commit}")
        for source in SOURCES
        for name in PLACES
        for commit in CommitMode
        # Who commits is the loop's affair, and the source's only where the sink or the commit fails.
        if commit is CommitMode.AUTO or source == "memory" or name in {"sink", "commit"}
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    source, name, commit = request.param
    return play(source, PLACES[name], commit, tmp_path_factory.mktemp("case"))


def expected(outcome: Outcome) -> tuple[type[EngineError], str]:
    """A commit that the sink does is the sink's to fail."""
    if outcome.place.error is CommitFailed and outcome.commit is CommitMode.SINK_MANAGED:
        return SinkFailed, "the sink, given"
    return outcome.place.error, outcome.place.says


def test_the_error_is_that_of_its_place_with_its_cause_and_the_text_of_that(outcome: Outcome) -> None:
    kind, text = expected(outcome)
    assert type(outcome.error) is kind
    assert re.search(text, str(outcome.error))
    assert isinstance(outcome.error.__cause__, outcome.place.cause or type(None))
    assert outcome.place.cause is None or str(outcome.error.__cause__) in str(outcome.error)


def test_after_the_failure_nothing_is_committed_received_or_leased(outcome: Outcome) -> None:
    assert (outcome.committed, outcome.commits) == (PER_BLOCK, 1)
    assert outcome.recvs == 2
    assert outcome.leased == 0


def test_the_next_run_and_a_restart_deliver_the_failed_block_again_and_the_rest(outcome: Outcome) -> None:
    assert outcome.next_run == outcome.payloads[PER_BLOCK:]
    assert outcome.restart is None or outcome.restart == outcome.payloads[PER_BLOCK:]
    assert outcome.leased_after_all == 0


# Beside the matrix


@pytest.mark.parametrize("source_name", SOURCES)
def test_an_interrupt_in_the_sink_is_no_engine_error_and_rewinds_too(source_name: str, tmp_path: Any) -> None:
    source = SOURCES[source_name](tmp_path, PAYLOADS)
    receiver = source.open()
    engine = BatchEngine(EngineConfig(max_records=PER_BLOCK, recv_timeout=0), regulation=None)

    def interrupted(batch: WorkBatch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(receiver, through, interrupted, until_idle=True)
    sink = Sink()
    engine.run(receiver, through, sink, until_idle=True)
    source.close()
    assert sink.values == PAYLOADS


def test_a_receiver_that_cannot_be_rewound_does_not_hide_the_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Watched):
        def rewind(self) -> None:
            raise Fault("it does not go back")

    source = SOURCES["memory"](None, PAYLOADS)  # type: ignore[arg-type]  # it has no place
    receiver = Stubborn(source.open(), Faults(("recv", 0)))
    with pytest.raises(ReceiveFailed, match="planned at recv 0"):
        BatchEngine(regulation=None).run(receiver, through, Sink(), until_idle=True)
    assert "could not be rewound" in caplog.text


RETURNS: dict[str, Callable[[WorkBatch], Any]] = {
    "nothing": lambda batch: None,
    "records": lambda batch: batch.records,
    "columns": lambda batch: batch.arrow,
}


@pytest.mark.parametrize("what", RETURNS)
def test_a_process_that_returns_no_work_batch_fails_its_block(what: str) -> None:
    source = SOURCES["memory"](None, PAYLOADS)  # type: ignore[arg-type]  # it has no place
    with pytest.raises(ProcessFailed, match="process must return a WorkBatch, not"):
        BatchEngine().run(source.open(), RETURNS[what], Sink(), until_idle=True)
    assert source.committed() == 0


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this has no text")


def test_an_exception_whose_text_cannot_be_read_is_reported_with_its_place() -> None:
    def fail(_: WorkBatch) -> WorkBatch:
        raise WithoutText

    with pytest.raises(ProcessFailed, match="WithoutText"):
        BatchEngine(EngineConfig(recv_timeout=0)).run(holding(1), fail, Sink(), until_idle=True)
