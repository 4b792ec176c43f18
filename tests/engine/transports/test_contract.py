"""What a receiver has to have, and which of its other methods the engine calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Record
from penstock.engine import BatchEngine, EngineConfig, MemoryGuard, Receiver, WorkBatch
from penstock.errors import SinkFailed
from tests.engine.doubles import Faults, Heap, Sink, regulated, through

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
