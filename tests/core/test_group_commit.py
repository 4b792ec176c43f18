"""Group commit: calls share a write, each ends as its own part did, and an interrupt anywhere holds up no call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import FrameType

import pytest

from penstock.core import GroupCommit, Latch, Work, group_commit, waiting
from penstock.errors import Closed, StorageError
from tests.support.interrupts import Interrupts
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background, Gate, wait_for_waiting_threads, wait_until, waiting_threads


class Item(Work):
    """A named part of a write."""

    def __init__(self, name: str, size_bytes: int = 1) -> None:
        super().__init__(size_bytes)
        self.name = name


class Writes:
    """The groups that were written. The first write is held up until its gate is opened."""

    def __init__(self, *, max_bytes: int = 100) -> None:
        self.groups: list[list[str]] = []
        self.first = Gate()
        self.before: Callable[[Sequence[Item]], object] = lambda group: None
        self.after: Callable[[], object] = lambda: None
        self.commits = GroupCommit(self._write, "the log", max_bytes=max_bytes, after_write=lambda: self.after())

    def begin(self) -> Background[None]:
        """Begin the first write."""
        leader = self.call("first")
        self.first.wait_for_arrival()
        return leader

    def call(self, name: str, size_bytes: int = 1) -> Background[None]:
        return Background(lambda: self.commits.commit(Item(name, size_bytes)))

    def line_up(self, *sizes: int) -> list[Background[None]]:
        """Calls that come one after another while the first write is under way."""
        calls = []
        for number, size in enumerate(sizes):
            calls.append(self.call(str(number), size))
            wait_for_waiting_threads(number + 1)
        return calls

    def _write(self, group: Sequence[Item]) -> None:
        names = [item.name for item in group]
        if names[:1] == ["first"]:
            self.first()
        self.before(group)
        self.groups.append(names)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([1] * 5, [["0", "1", "2", "3", "4"]]),
        ([40, 60, 1], [["0", "1"], ["2"]]),
        ([1, 1000, 1], [["0"], ["1"], ["2"]]),
        ([1000, 50, 50], [["0"], ["1", "2"]]),
    ],
)
def test_calls_that_come_during_a_write_share_the_next_up_to_a_size(sizes: list[int], groups: list[list[str]]) -> None:
    writes = Writes()
    leader = writes.begin()
    calls = writes.line_up(*sizes)
    writes.first.open()
    for call in (leader, *calls):
        call.result()
    assert writes.groups == [["first"], *groups]


def test_what_a_leader_does_after_a_write_holds_up_the_next_write_and_none_of_those_it_wrote_for() -> None:
    writes = Writes()
    leader = writes.begin()
    calls = writes.line_up(1, 1)
    after = Gate()
    writes.after = lambda: after() if len(writes.groups) == 2 else None
    writes.first.open()
    leader.result()
    after.wait_for_arrival()
    calls[1].result()
    last = writes.call("last")
    wait_for_waiting_threads()
    assert len(writes.groups) == 2
    after.open()
    last.result()
    calls[0].result()


class TakesTwo(Exception):
    """An error that cannot be copied by its `args`."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


@pytest.mark.parametrize("error", [StorageError("refused"), TakesTwo("refused", "again")], ids=["copied", "shared"])
def test_a_write_that_fails_fails_each_call_of_its_group(error: Exception) -> None:
    writes = Writes()
    leader = writes.begin()
    calls = writes.line_up(1, 1, 1)

    def refuse(group: Sequence[Item]) -> None:
        if len(group) == 3:
            raise error from OSError("the disk")

    writes.before = refuse
    writes.first.open()
    leader.result()
    raised = []
    for call in calls:
        with pytest.raises(type(error), match="refused") as caught:
            call.result()
        assert isinstance(caught.value.__cause__, OSError)
        raised.append(caught.value)
    assert len({id(one) for one in raised}) == (3 if isinstance(error, StorageError) else 1)
    writes.commits.commit(Item("next"))


def test_a_call_whose_own_part_failed_fails_alone() -> None:
    writes = Writes()
    leader = writes.begin()
    calls = writes.line_up(1, 1, 1)

    def refuse_one(group: Sequence[Item]) -> None:
        if len(group) == 3:
            group[1].error = StorageError("refused")

    writes.before = refuse_one
    writes.first.open()
    for call in (leader, calls[0], calls[2]):
        call.result()
    with pytest.raises(StorageError, match="refused"):
        calls[1].result()


def test_close_waits_for_the_calls_in_line_and_refuses_later_ones() -> None:
    writes = Writes()
    leader = writes.begin()
    calls = writes.line_up(1, 1)
    closing = Background(writes.commits.close)
    wait_for_waiting_threads(3)
    with pytest.raises(Closed, match="the log is closed"):
        writes.commits.commit(Item("late"))
    with pytest.raises(Closed, match="the log is closed"):
        writes.commits.commit_later(Item("late"))
    assert not closing.has_ended_within(A_WHILE)
    writes.first.open()
    for call in (leader, *calls, closing):
        call.result()
    assert writes.groups == [["first"], ["0", "1"]]


def test_a_future_ends_when_its_part_is_written_and_can_be_cancelled_until_then() -> None:
    writes = Writes()
    leader = writes.begin()
    futures = [writes.commits.commit_later(Item(name)) for name in "abc"]
    assert futures[1].cancel()
    writes.first.open()
    leader.result()
    assert [futures[at].result(PATIENCE) for at in (0, 2)] == [None, None]
    assert writes.groups == [["first"], ["a", "c"]]
    writes.commits.close()


def test_nothing_is_written_where_all_that_came_were_cancelled() -> None:
    writes = Writes()
    leader = writes.begin()
    futures = [writes.commits.commit_later(Item(name)) for name in "ab"]
    writes.after = lambda: writes.groups.append(["after a write"])
    assert all(future.cancel() for future in futures)
    writes.first.open()
    leader.result()
    writes.commits.close()
    assert writes.groups == [["first"], ["after a write"]]


FILES = (group_commit.__file__, waiting.__file__)
START = threading.Thread.start.__code__  # of the helper's thread: it waits there, so an interrupt is likely


def interrupted(number: int, event: str) -> Interrupts:
    def is_place(frame: FrameType, what: str) -> bool:
        return what == event and (frame.f_code.co_filename in FILES or frame.f_code is START)

    return Interrupts(number, (*FILES, START.co_filename).__contains__, is_place)


@pytest.mark.parametrize("event", ["call", "return"])
@pytest.mark.parametrize("fails", [False, True], ids=["a write that succeeds", "a write that fails"])
def test_an_interrupt_anywhere_in_a_leader_holds_up_no_call(event: str, fails: bool) -> None:
    """One call is under way, the second leads for three that share a write, and is interrupted; the others are behind.

    One of the three, and the one that leads after them, are coroutines'.
    """
    for number in itertools.count():
        writes = Writes(max_bytes=3)
        interrupts = interrupted(number, event)
        leader = writes.begin()
        led = Background(lambda: interrupts.during(lambda: ended_well(writes.commits, Item("0"))))  # noqa: B023
        wait_until(lambda: waiting_threads() == 1 or led.has_ended_within(0))  # noqa: B023
        others: list[Background[bool]] = []
        futures: list[Future[None]] = []
        for names in ("1", "23"):
            futures.append(writes.commits.commit_later(Item(f"later {names}")))
            others += [Background(lambda name=name: ended_well(writes.commits, Item(name))) for name in names]  # type: ignore[misc]  # noqa: B023
            wait_until(lambda: waiting_threads() >= len(others) + (not led.has_ended_within(0)))  # noqa: B023

        def refuse(group: Sequence[Item]) -> None:
            if group[0].name == "0":
                raise StorageError("refused")

        writes.before = refuse if fails else writes.before
        writes.first.open()
        leader.result()
        led.result()
        for call in others:
            assert call.has_ended_within(PATIENCE), f"a call waits for ever after the interrupt {number}"
        errors = [future.exception(PATIENCE) for future in futures]
        writes.call("next").result()
        Background(writes.commits.close).result()
        written = list(itertools.chain.from_iterable(writes.groups))
        assert len(written) == len(set(written))
        for at, call in enumerate(others, 1):
            assert call.result() <= (str(at) in written)
        for name, error in zip(("later 1", "later 23"), errors, strict=True):
            assert (error is None) <= (name in written)
        if not interrupts.came:
            assert number > 10
            return


@pytest.mark.parametrize("event", ["call", "return"])
def test_an_interrupt_anywhere_in_a_coroutines_call_holds_up_no_other(event: str) -> None:
    for number in itertools.count():
        writes = Writes()
        interrupts = interrupted(number, event)
        interrupts.during(lambda: writes.commits.commit_later(Item("later")).result(PATIENCE))  # noqa: B023
        writes.call("next").result()
        Background(writes.commits.close).result()
        written = list(itertools.chain.from_iterable(writes.groups))
        assert len(written) == len(set(written))
        if not interrupts.came:
            assert number > 3
            return


def test_of_two_helper_threads_one_writes() -> None:
    """An interrupt while the helper's thread is started: the leader does not know of it, and starts another."""
    writes = Writes()
    interrupts = Interrupts(0, START.co_filename.__eq__, lambda frame, what: what == "return" and frame.f_code is START)
    led = Background(lambda: interrupts.during(lambda: writes.commits.commit(Item("first"))))
    writes.first.wait_for_arrival()
    future = writes.commits.commit_later(Item("later"))
    gate = Gate()
    writes.before = lambda group: gate() if group[0].name == "later" else None
    writes.first.open()
    led.result()
    assert interrupts.came
    gate.wait_for_arrival()
    second = Background(gate.wait_for_arrival)
    assert not second.has_ended_within(A_WHILE)
    gate.open()
    future.result(PATIENCE)
    writes.commits.close()
    assert writes.groups == [["first"], ["later"]]


def ended_well(commits: GroupCommit[Item], item: Item) -> bool:
    try:
        commits.commit(item)
    except StorageError:
        return False
    return True


def test_an_interrupted_call_in_line_is_not_written() -> None:
    writes = Writes()
    leader = writes.begin()
    wait = Latch.wait.__code__
    interrupts = Interrupts(0, FILES.__contains__, lambda frame, what: what == "call" and frame.f_code is wait)
    Background(lambda: interrupts.during(lambda: writes.commits.commit(Item("never")))).result()
    assert interrupts.came
    other = writes.call("other")
    wait_for_waiting_threads()
    writes.first.open()
    leader.result()
    other.result()
    assert writes.groups == [["first"], ["other"]]
