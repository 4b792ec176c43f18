"""Sub-blocks: consecutive pieces of a block, cut lazily, and one commit after the last."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Record
from penstock.engine import (
    BatchEngine,
    CommitMode,
    DeadLetter,
    DlqPolicy,
    MemoryGuard,
    ParsedBatch,
    SelfRegulation,
    WorkBatch,
)
from penstock.errors import SinkFailed
from penstock.records import values_to_arrow
from tests.engine.doubles import Faults, Journal, Route, Scripted, Sink, looking, through, values

TOKENS = (7, 8, 9)


def of_list(payloads: list[bytes]) -> WorkBatch:
    return WorkBatch(map(Record, payloads), TOKENS)


def of_columns(payloads: list[bytes]) -> WorkBatch:
    return WorkBatch(values_to_arrow(payloads), TOKENS)


@pytest.fixture(params=[of_list, of_columns])
def block_of(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(block: WorkBatch, most: int | None, sink: Any = None, **more: Any) -> tuple[Sink, Scripted]:
    """Run one block, unregulated."""
    receiver, sink = Scripted(block), sink or Sink()
    more = {"process": through, **more}
    BatchEngine(regulation=None).run(receiver, more.pop("process"), sink, sub_block_bytes=most, until_idle=True, **more)
    return sink, receiver


def pieces(sink: Sink) -> list[list[bytes]]:
    return [values(batch.records) for batch in sink.batches]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12), most=st.integers(0, 30), arrow=st.booleans())
def test_pieces_are_the_block_in_order_each_within_the_limit_or_one_record(
    sizes: list[int], most: int, arrow: bool
) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    sink, receiver = run((of_columns if arrow else of_list)(payloads), most)
    assert sink.values == payloads
    assert all(sum(map(len, piece)) <= most or len(piece) == 1 for piece in pieces(sink))
    assert receiver.commits == [TOKENS]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12), most=st.integers(1, 30), arrow=st.booleans())
def test_no_piece_could_have_had_the_next_record_too(sizes: list[int], most: int, arrow: bool) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    cut = pieces(run((of_columns if arrow else of_list)(payloads), most)[0])
    assert all(sum(map(len, piece)) + len(after[0]) > most for piece, after in pairwise(cut))


def test_without_a_limit_the_block_is_whole(block_of: Any) -> None:
    assert pieces(run(block_of([b"a", b"b"]), None)[0]) == [[b"a", b"b"]]


def test_a_limit_of_0_means_one_record_each(block_of: Any) -> None:
    assert pieces(run(block_of([b"a", b"", b"", b"b"]), 0)[0]) == [[b"a"], [b""], [b""], [b"b"]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_larger_than_the_limit_is_a_piece_of_its_own(block_of: Any, place: int) -> None:
    payloads = [b"a", b"b"]
    payloads.insert(place, b"x" * 9)
    assert [b"x" * 9] in pieces(run(block_of(payloads), 5)[0])


def test_a_block_that_is_one_piece_keeps_its_tokens(block_of: Any) -> None:
    assert run(block_of([b"a", b"b"]), 2)[0].tokens == [TOKENS]


def test_of_several_pieces_none_carries_tokens(block_of: Any) -> None:
    assert run(block_of([b"a", b"b", b"c"]), 1)[0].tokens == [(), (), ()]


def test_of_several_pieces_the_last_carries_the_tokens_where_the_sink_commits(block_of: Any) -> None:
    sink, receiver = run(block_of([b"a", b"b", b"c"]), 1, commit=CommitMode.SINK_MANAGED)
    assert (sink.tokens, receiver.commits) == ([(), (), TOKENS], [])


def test_the_last_piece_reaches_a_sink_that_commits_even_without_records(block_of: Any) -> None:
    def without_c(batch: WorkBatch) -> WorkBatch:
        return batch.map_records(lambda records: [record for record in records if record.value != b"c"])

    sink, _ = run(block_of([b"a", b"b", b"c"]), 1, process=without_c, commit=CommitMode.SINK_MANAGED)
    assert (pieces(sink), sink.tokens) == ([[b"a"], [b"b"], []], [(), (), TOKENS])


def test_process_gets_the_pieces_without_tokens(block_of: Any) -> None:
    seen: list[Any] = []
    run(block_of([b"a", b"b"]), 1, process=looking(lambda batch: seen.append(batch.commit_tokens)))
    assert seen == [(), ()]


def test_there_is_one_commit_after_the_last_piece(block_of: Any) -> None:
    commits_seen: list[int] = []
    receiver = Scripted(block_of([b"a", b"b", b"c"]))
    BatchEngine(regulation=None).run(
        receiver, through, lambda batch: commits_seen.append(len(receiver.commits)), sub_block_bytes=1, until_idle=True
    )
    assert (commits_seen, receiver.commits) == ([0, 0, 0], [TOKENS])


def test_a_piece_is_cut_when_the_one_before_is_sunk(block_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    journal: list[Any] = []
    cut = WorkBatch.piece

    def note(batch: WorkBatch, start: int, stop: int) -> WorkBatch:
        journal.append((start, stop))
        return cut(batch, start, stop)

    monkeypatch.setattr(WorkBatch, "piece", note)
    run(block_of([b"a", b"b", b"c"]), 1, lambda batch: journal.append("sunk"))
    assert journal == [(0, 1), "sunk", (1, 2), "sunk", (2, 3), "sunk"]


def test_no_more_than_one_piece_is_leased_at_a_time(block_of: Any) -> None:
    guard, leased = MemoryGuard(1 << 30), list[int]()
    engine = BatchEngine(regulation=SelfRegulation(guard=guard))
    receiver = Scripted(block_of([b"aa", b"bb", b"cccc", b"d"]))
    engine.run(receiver, through, lambda batch: leased.append(guard.current_bytes), sub_block_bytes=4, until_idle=True)
    assert leased == [4, 4, 1]


def test_an_uncut_block_is_leased_whole(block_of: Any) -> None:
    guard, leased = MemoryGuard(1 << 30), list[int]()
    engine = BatchEngine(regulation=SelfRegulation(guard=guard))
    engine.run(
        Scripted(block_of([b"aa", b"bb"])), through, lambda batch: leased.append(guard.current_bytes), until_idle=True
    )
    assert leased == [4]


def test_a_piece_is_leased_while_it_is_processed(block_of: Any) -> None:
    guard, leased = MemoryGuard(1 << 30), list[int]()
    engine = BatchEngine(regulation=SelfRegulation(guard=guard))
    engine.run(
        Scripted(block_of([b"aa", b"bb"])),
        looking(lambda batch: leased.append(guard.current_bytes)),
        Sink(),
        until_idle=True,
    )
    assert leased == [4]


def test_nothing_is_leased_when_the_block_is_done(block_of: Any) -> None:
    guard = MemoryGuard(1 << 30)
    engine = BatchEngine(regulation=SelfRegulation(guard=guard))
    engine.run(Scripted(block_of([b"aa", b"bb"])), through, Sink(), sub_block_bytes=0, until_idle=True)
    assert guard.current_bytes == 0


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_any_piece_failing_fails_the_block_and_no_later_one_is_processed(block_of: Any, failing: int) -> None:
    sink, processed = Sink(faults=Faults(("sink", failing))), list[bytes]()
    receiver = Scripted(block_of([b"a", b"b", b"c"]), block_of([b"later"]))
    with pytest.raises(SinkFailed):
        BatchEngine(regulation=None).run(
            receiver,
            looking(lambda batch: processed.extend(values(batch.records))),
            sink,
            sub_block_bytes=0,
            until_idle=True,
        )
    assert (len(processed), receiver.commits, len(receiver.blocks)) == (failing + 1, [], 1)


def test_inbound_letters_of_a_block_in_pieces_are_routed_first_and_once() -> None:
    journal: Journal = []
    block = WorkBatch([Record(b"a"), Record(b"b")], TOKENS, [DeadLetter(b"x", "bad")])
    BatchEngine(dlq=DlqPolicy.route(Route(journal)), regulation=None).run(
        Scripted(block), through, Sink(journal), sub_block_bytes=0, until_idle=True
    )
    assert journal == [("route", [b"x"]), ("sink", [b"a"]), ("sink", [b"b"])]


def test_a_block_without_records_is_one_piece() -> None:
    sink, receiver = run(WorkBatch((), TOKENS), 0)
    assert (sink.batches, receiver.commits) == ([], [TOKENS])


def test_pieces_are_parsed_each(block_of: Any) -> None:
    sizes: list[int] = []
    block = block_of([b'{"n": 1}', b'{"n": 2}'])

    def process(parsed: ParsedBatch) -> WorkBatch:
        sizes.append(len(parsed.parsed))
        return WorkBatch(parsed.records)

    run(block, 0, parse=True, process=process)
    assert sizes == [1, 1]


def test_the_time_to_cut_pieces_of_a_long_list_grows_with_its_length_and_no_faster() -> None:
    reads = 0

    class Counted(Record):
        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += name == "value"
            return super().__getattribute__(name)

    batch, start = WorkBatch([Counted(b"x") for _ in range(1000)]), 0
    reads = 0
    while start < len(batch):
        start += batch.rows_within(start, 1)
    assert reads <= 3 * 1000
