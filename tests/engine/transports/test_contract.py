"""What a receiver has to have, which of its other methods the engine calls, and what all transports have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Record
from penstock.engine import BatchEngine, DeadLetter, Drop, EngineConfig, Keep, MemoryGuard, Receiver, WorkBatch
from penstock.engine.transports.contract import Verdict
from penstock.errors import Closed, InvalidInput, SinkFailed
from tests.engine.doubles import Faults, Heap, Sink, regulated, through, values
from tests.engine.sources import SOURCES, Source

QUICK = EngineConfig(recv_timeout=0)


class Least(Receiver):
    """One block of one record, and only the methods that every receiver has."""

    def __init__(self) -> None:
        self.commits: list[Any] = []

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        return WorkBatch(()) if self.commits else WorkBatch([Record(b"x")], (0,))

    def commit(self, tokens: Sequence[Any]) -> None:
        self.commits += tokens


class Optional:
    """The other methods; they note that they were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    @property
    def in_hand(self) -> bool:
        self.calls.append("in_hand")
        return True

    def use_guard(self, guard: MemoryGuard) -> None:
        self.calls.append("use_guard")

    def release_block(self) -> None:
        self.calls.append("release_block")

    def rewind(self) -> None:
        self.calls.append("rewind")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


class Inheriting(Optional, Least):
    """Everything, in a class that inherits from `Receiver`."""


class DuckTyped(Optional):
    """Everything, in a class that does not."""

    def __init__(self) -> None:
        super().__init__()
        least = Least()
        self.recv, self.commit, self.commits = least.recv, least.commit, least.commits


def test_a_receiver_that_has_recv_and_commit_alone_is_run_held_and_run_again_after_a_failure() -> None:
    receiver, heap = Least(), Heap(1.0)
    engine = BatchEngine(QUICK, regulation=regulated(heap.guard))
    relieve = (1e-9, lambda: setattr(heap, "share", 0.0))
    with pytest.raises(SinkFailed):
        engine.run(receiver, through, Sink(faults=Faults(("sink", 0))), ticker=relieve, until_idle=True)
    engine.run(receiver, through, Sink(), until_idle=True)
    assert receiver.commits == [0]
    assert (receiver.healthy, receiver.in_hand) == (True, False)
    receiver.close()


@pytest.mark.parametrize("receiver", [Inheriting(), DuckTyped()], ids=["inheriting", "duck typed"])
def test_the_other_methods_are_called_whether_or_not_it_inherits(receiver: Inheriting | DuckTyped) -> None:
    engine = BatchEngine(QUICK, regulation=regulated(Heap(1.0).guard))
    with pytest.raises(SinkFailed):
        engine.run(receiver, through, Sink(faults=Faults(("sink", 0))))
    assert receiver.calls == ["use_guard", "in_hand", "pause", "rewind", "resume"]
    receiver.calls.clear()
    BatchEngine(QUICK, regulation=None).run(receiver, through, Sink(), until_idle=True)
    assert (receiver.calls[0], receiver.calls[-1]) == ("use_guard", "in_hand")
    assert "release_block" in receiver.calls


def test_a_receiver_without_recv_or_commit_cannot_be_created() -> None:
    class Without(Receiver):
        def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
            return WorkBatch(())

    with pytest.raises(TypeError, match="commit"):
        Without()  # type: ignore[abstract]


# What the three transports have in common


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    source: Source = SOURCES[request.param](tmp_path, [b"keep", b"drop", b"dead"])
    yield source
    source.close()


@pytest.mark.parametrize(
    ("limits", "field"),
    [((0,), "max_records"), ((1.5,), "max_records"), ((1, -1), "max_bytes"), ((1, None, -1), "timeout")],
)
def test_a_limit_out_of_range_is_refused(source: Source, limits: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        source.open().recv(*limits)


def test_filters_drop_records_and_make_dead_letters_and_the_tokens_commit_all_of_them(source: Source) -> None:
    letter = DeadLetter(b"dead", "bad", stage="recv")
    verdicts: dict[bytes, Verdict] = {b"keep": Keep, b"drop": Drop, b"dead": letter}
    receiver = source.open([lambda record: verdicts[record.value]])
    block = receiver.recv(9)
    assert (values(block.records), block.filtered, block.dead_letters) == ([b"keep"], 1, (letter,))
    receiver.commit(block.commit_tokens)
    assert source.committed() == 3


def test_after_a_filter_raised_the_records_come_again(source: Source) -> None:
    fails = iter([False, True])

    def judge(record: Record) -> Verdict:
        if next(fails, False):
            raise LookupError
        return Keep

    receiver = source.open([judge])
    with pytest.raises(LookupError):
        receiver.recv(9)
    assert values(receiver.recv(9).records) == [b"keep", b"drop", b"dead"]


def test_after_close_it_is_not_healthy_and_refuses_to_receive(source: Source) -> None:
    receiver = source.open()
    before = receiver.healthy
    receiver.close()
    assert (before, receiver.healthy) == (True, False)
    with pytest.raises(Closed):
        receiver.recv(1)
