"""Any records, any limits, failures anywhere: everything is delivered, and nothing is committed before it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Record
from penstock.engine import (
    BatchEngine,
    CommitMode,
    DeadLetter,
    DlqPolicy,
    Drop,
    EngineConfig,
    Keep,
    MemoryGuard,
    MemoryTransport,
    WorkBatch,
)
from penstock.engine.transports.contract import Verdict
from penstock.errors import EngineError
from tests.engine.doubles import Fault, Faults, regulated

FATES = ["kept", "doubled", "gone", "dropped", "dead at recv", "dead at process"]
PLACES = ["recv", "filter", "process", "route", "sink", "late sink", "commit", "late commit"]


class World:
    """A source, a sink and a route that note what they get, and fail as planned."""

    def __init__(self, records: list[tuple[int, str]], faults: list[tuple[str, int]], commit: CommitMode) -> None:
        self.records = [Record(b"%04d" % number + b"x" * size) for number, (size, _) in enumerate(records)]
        self.fates = [fate for _, fate in records]
        self.faults = Faults(*faults)
        self.commit_mode = commit
        self.transport = MemoryTransport(filters=[self.judge])
        self.transport.send(self.records)
        self.delivered: set[int] = {number for number, fate in enumerate(self.fates) if fate in {"gone", "dropped"}}
        self.sunk_in_run: list[int] = []

    # The receiver

    healthy = True

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        self.faults.meet("recv")
        block = self.transport.recv(max_records, max_bytes, 0)
        assert len(block) + len(block.dead_letters) + block.filtered <= max_records
        return block

    def commit(self, tokens: Sequence[Any]) -> None:
        self.faults.meet("commit")
        assert set(range(max(tokens) + 1)) <= self.delivered, "committed before it was delivered"
        self.transport.commit(tokens)
        self.faults.meet("late commit")

    def rewind(self) -> None:
        self.transport.rewind()

    def close(self) -> None:
        self.transport.close()

    # What a user has

    def judge(self, record: Record) -> Verdict:
        self.faults.meet("filter")
        match self.fates[int(record.value[:4])]:
            case "dropped":
                return Drop
            case "dead at recv":
                return DeadLetter.of(record, "dead", stage="recv")
        return Keep

    def process(self, batch: WorkBatch) -> WorkBatch:
        self.faults.meet("process")
        fates = [(record, self.fates[int(record.value[:4])]) for record in batch.records]
        times = {"kept": 1, "doubled": 2}
        return WorkBatch(
            [record for record, fate in fates for _ in range(times.get(fate, 0))],
            dead_letters=[DeadLetter.of(record, "dead") for record, fate in fates if fate == "dead at process"],
        )

    def route(self, letters: list[DeadLetter]) -> None:
        self.faults.meet("route")
        self.delivered |= {int(letter.payload[:4]) for letter in letters}

    def sink(self, batch: WorkBatch) -> None:
        self.faults.meet("sink")
        numbers = [int(record.value[:4]) for record in batch.records]
        self.sunk_in_run += numbers
        self.delivered |= set(numbers)
        self.faults.meet("late sink")
        if self.commit_mode is CommitMode.SINK_MANAGED and batch.commit_tokens:
            self.commit(batch.commit_tokens)


@settings(max_examples=150, deadline=None)
@given(
    records=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(FATES)), max_size=25),
    faults=st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 12)), max_size=6, unique=True),
    commit=st.sampled_from(CommitMode),
    max_records=st.integers(1, 8),
    budget=st.none() | st.integers(1, 120),
    sub_block_bytes=st.none() | st.integers(0, 60),
)
def test_everything_is_delivered_in_order_and_nothing_is_committed_before(
    records: list[tuple[int, str]],
    faults: list[tuple[str, int]],
    commit: CommitMode,
    max_records: int,
    budget: int | None,
    sub_block_bytes: int | None,
) -> None:
    world = World(records, faults, commit)
    guard = MemoryGuard(1 << 30)
    regulation = None if budget is None else regulated(guard, start_bytes=budget, floor_bytes=1, max_bytes=200)
    engine = BatchEngine(
        EngineConfig(max_records=max_records, recv_timeout=0), dlq=DlqPolicy.route(world.route), regulation=regulation
    )
    for _ in range(len(faults) + 1):
        world.sunk_in_run = []
        through = world.transport.committed_sequence
        first = 0 if through is None else through + 1
        try:
            engine.run(
                world, world.process, world.sink, commit=commit, sub_block_bytes=sub_block_bytes, until_idle=True
            )
        except EngineError as error:
            if not isinstance(error.__cause__, Fault):
                raise
            assert world.sunk_in_run == sorted(world.sunk_in_run)
            assert engine.guard.current_bytes == 0
        else:
            break
    else:
        raise AssertionError("more failures than faults")
    assert world.delivered == set(range(len(records)))
    assert world.transport.committed_sequence == (len(records) - 1 if records else None)
    times = {"kept": 1, "doubled": 2}
    expected = [n for n in range(first, len(records)) for _ in range(times.get(world.fates[n], 0))]
    assert world.sunk_in_run == expected
    assert engine.guard.current_bytes == 0
