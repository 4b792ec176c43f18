"""Async functions in a run, and a run on an event loop: every mixture, cancellation anywhere, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

import pytest
import uvloop

from penstock import Record
from penstock.engine import BatchEngine, DeadLetter, DlqPolicy, EngineConfig, MemoryTransport, WorkBatch
from penstock.errors import DeadLetterRouteFailed, InvalidInput, ProcessFailed, SinkFailed
from tests.engine.doubles import Fault, Sink, Watched, holding, through
from tests.support.cancelling import Outcome, cancel_at_each_suspension
from tests.support.loop_gap import LoopGap
from tests.support.processes import PATIENCE
from tests.support.waiting import Background

Answer = TypeVar("Answer")
Args = TypeVarTuple("Args")
QUICK = EngineConfig(max_records=2, recv_timeout=0)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on_a_loop(work: Coroutine[Any, Any, Answer], kind: str = "asyncio") -> Answer:
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        return runner.run(work)


def run(engine: BatchEngine, how: str, *args: Any, **more: Any) -> Any:
    """Run an engine in one of the ways: `run`, `run` beside a running loop, or `run_async` on either loop."""
    if how == "run":
        return engine.run(*args, **more)
    if how == "run on a loop's thread":

        async def beside() -> Any:
            return engine.run(*args, **more)

        return on_a_loop(beside())
    return on_a_loop(engine.run_async(*args, **more), how)


WAYS = ["run", "run on a loop's thread", *LOOPS]


def as_async(fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any) -> Any:
        await asyncio.sleep(0)
        return fn(*args)

    return call


def mixed(is_async: bool, fn: Callable[..., Any]) -> Callable[..., Any]:
    return as_async(fn) if is_async else fn


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("penstock-engine")}


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert not threads()


def every_second_is_dead(batch: WorkBatch) -> WorkBatch:
    good, bad = batch.records[::2], batch.records[1::2]
    return WorkBatch(good, dead_letters=[DeadLetter.of(record, "odd") for record in bad])


@pytest.mark.parametrize("kinds", list(itertools.product([False, True], repeat=4)), ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_each_function_may_be_plain_or_async(way: str, kinds: tuple[bool, bool, bool, bool]) -> None:
    ticks, letters, sink = list[int](), list[DeadLetter](), Sink()
    source, clock = holding(6), itertools.count(0.0, 10.0)
    engine = BatchEngine(QUICK, dlq=DlqPolicy.route(mixed(kinds[2], letters.extend)), clock=lambda: next(clock))
    stats = run(
        engine,
        way,
        source,
        mixed(kinds[0], every_second_is_dead),
        mixed(kinds[1], sink),
        ticker=(1.0, mixed(kinds[3], lambda: ticks.append(1))),
        until_idle=True,
    )
    assert (sink.values, [letter.payload for letter in letters]) == ([b"0", b"2", b"4"], [b"1", b"3", b"5"])
    assert (stats.processed, stats.dead_lettered, source.committed_sequence) == (6, 3, 5)
    assert ticks


class AsyncReceiver:
    """A receiver whose `recv` and `commit` are coroutines."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self.rewind = transport.rewind

    async def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        await asyncio.sleep(0)
        return self.transport.recv(max_records, max_bytes, 0)

    async def commit(self, tokens: Any) -> None:
        await asyncio.sleep(0)
        self.transport.commit(tokens)


@pytest.mark.parametrize("way", WAYS)
def test_a_receiver_may_be_async(way: str) -> None:
    transport, sink = holding(5), Sink()
    run(BatchEngine(QUICK), way, AsyncReceiver(transport), through, sink, until_idle=True)
    assert (len(sink.values), transport.committed_sequence) == (5, 4)


@pytest.mark.parametrize("way", ["run", *LOOPS])
@pytest.mark.parametrize("as_what", [lambda one: one, lambda one: [one, None], lambda one: (one,)])
def test_awaitables_that_a_sink_returns_are_awaited_before_the_commit(way: str, as_what: Callable[[Any], Any]) -> None:
    receiver, done = Watched(holding(1)), list[object]()

    async def write() -> None:
        await asyncio.sleep(0.01)
        assert receiver.commits == []
        done.append(1)

    run(BatchEngine(QUICK), way, receiver, through, lambda batch: as_what(write()), until_idle=True)
    assert (done, receiver.commits) == ([1], [(0,)])


def test_a_task_that_an_async_sink_created_is_awaited() -> None:
    receiver, done = Watched(holding(1)), list[object]()

    async def write() -> None:
        await asyncio.sleep(0.01)
        done.append(len(receiver.commits))

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def sink(batch: WorkBatch) -> Any:
            return asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)

        async def start() -> asyncio.Task[None]:
            return asyncio.ensure_future(write())

        await BatchEngine(QUICK).run_async(receiver, through, sink, until_idle=True)

    on_a_loop(main())
    assert done == [0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [ProcessFailed, SinkFailed, DeadLetterRouteFailed])
def test_an_async_function_that_raises_fails_as_a_plain_one(way: str, place: Any) -> None:
    source = holding(2)

    async def fail(*_: object) -> Any:
        await asyncio.sleep(0)
        raise Fault("planned")

    def all_dead(batch: WorkBatch) -> WorkBatch:
        return WorkBatch((), dead_letters=[DeadLetter(b"x", "dead")])

    process: Any = {ProcessFailed: fail, DeadLetterRouteFailed: all_dead}.get(place, through)
    engine = BatchEngine(QUICK, dlq=DlqPolicy.route(fail))
    with pytest.raises(place, match="Fault: planned") as caught:
        run(engine, way, source, process, fail, until_idle=True)
    assert isinstance(caught.value.__cause__, Fault)
    assert source.committed_sequence is None
    assert len(source.recv(10)) == 2


@pytest.mark.parametrize("way", ["run", *LOOPS])
def test_an_async_ticker_that_raises_is_logged_and_the_loop_goes_on(way: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise Fault("no report today")

    clock, source = itertools.count(0.0, 10.0), holding(1)
    engine = BatchEngine(QUICK, clock=lambda: next(clock))
    run(engine, way, source, through, Sink(), ticker=(1.0, fail), until_idle=True)
    assert "the ticker failed; the loop goes on" in caplog.messages
    assert source.committed_sequence == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_async", [False, True])
def test_functions_see_the_context_of_the_caller(way: str, is_async: bool) -> None:
    variable, seen = contextvars.ContextVar[str]("variable"), list[str]()
    variable.set("the caller's")
    sink = mixed(is_async, lambda batch: seen.append(variable.get()))
    run(BatchEngine(QUICK), way, holding(1), through, sink, until_idle=True)
    assert seen == ["the caller's"]


def test_coroutines_run_on_the_callers_loop_and_plain_functions_beside_it() -> None:
    where = list[object]()

    async def process(batch: WorkBatch) -> WorkBatch:
        where.append(asyncio.get_running_loop())
        return batch

    async def main() -> None:
        await BatchEngine(QUICK).run_async(
            holding(1), process, lambda batch: where.append(threading.current_thread()), until_idle=True
        )
        assert where[0] is asyncio.get_running_loop()
        assert where[1] is not threading.current_thread()

    on_a_loop(main())


def test_the_loop_of_a_run_is_closed_with_the_tasks_that_are_left_on_it() -> None:
    ended, loops = threading.Event(), list[asyncio.AbstractEventLoop]()

    async def linger() -> None:
        try:
            await asyncio.sleep(NEVER)
        finally:
            ended.set()

    tasks = set[Any]()

    async def sink(batch: WorkBatch) -> None:
        loops.append(asyncio.get_running_loop())
        tasks.add(asyncio.ensure_future(linger()))
        await asyncio.sleep(0)

    BatchEngine(QUICK).run(holding(1), through, sink, until_idle=True)
    assert ended.is_set()
    assert loops[0].is_closed()


NEVER = 3600.0


@pytest.mark.parametrize("kind", LOOPS)
def test_a_sink_that_blocks_does_not_block_the_loop(kind: str) -> None:
    set_by_loop = threading.Event()

    async def main() -> float:
        async with LoopGap() as gap:
            running = asyncio.ensure_future(
                BatchEngine(QUICK).run_async(holding(1), through, lambda batch: block(), until_idle=True)
            )
            assert await asyncio.to_thread(blocked.wait, PATIENCE)
            set_by_loop.set()  # only a loop that goes on comes here
            await running
        return gap.longest

    blocked = threading.Event()

    def block() -> None:
        blocked.set()
        assert set_by_loop.wait(PATIENCE)
        time.sleep(0.2)

    assert on_a_loop(main(), kind) < 0.15


# Shutdown


class Stuck:
    """A receiver that ignores its timeout: its `recv` returns when the test lets it."""

    def __init__(self) -> None:
        self.transport = MemoryTransport()
        self.waits, self.go = threading.Event(), threading.Event()
        self.receiving = self.most_at_once = self.rewinds = 0

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        self.receiving += 1
        self.most_at_once = max(self.receiving, self.most_at_once)
        self.waits.set()
        assert self.go.wait(PATIENCE)
        self.receiving -= 1
        return self.transport.recv(max_records, max_bytes, 0)

    def commit(self, tokens: Any) -> None:
        self.transport.commit(tokens)

    def rewind(self) -> None:
        self.rewinds += 1
        self.transport.rewind()


@pytest.fixture
def stuck() -> Any:
    receiver = Stuck()
    yield receiver
    receiver.go.set()
    for thread in threads():
        thread.join(PATIENCE)


@pytest.mark.parametrize("event", [threading.Event, asyncio.Event])
def test_a_shutdown_ends_a_run_whose_receiver_ignores_its_timeout(event: Any, stuck: Stuck) -> None:
    shutdown = event()
    running = Background(lambda: BatchEngine(QUICK).run(stuck, through, Sink(), shutdown=shutdown))
    assert stuck.waits.wait(PATIENCE)
    shutdown.set()
    assert running.has_ended_within(PATIENCE / 2)
    running.result()


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("event", [threading.Event, asyncio.Event])
def test_a_shutdown_ends_an_async_run_whose_receiver_ignores_its_timeout(event: Any, kind: str, stuck: Stuck) -> None:
    async def main() -> None:
        shutdown = event()
        running = asyncio.ensure_future(BatchEngine(QUICK).run_async(stuck, through, Sink(), shutdown=shutdown))
        await asyncio.to_thread(stuck.waits.wait, PATIENCE)
        shutdown.set()
        await asyncio.wait_for(running, PATIENCE / 2)

    on_a_loop(main(), kind)


def test_what_a_late_receive_brings_is_given_back_and_the_next_run_waits_for_it(stuck: Stuck) -> None:
    shutdown, engine, sink = threading.Event(), BatchEngine(QUICK), Sink()
    running = Background(lambda: engine.run(stuck, through, sink, shutdown=shutdown))
    assert stuck.waits.wait(PATIENCE)
    shutdown.set()
    running.result()
    stuck.transport.send([Record(b"late")])
    again = Background(lambda: engine.run(stuck, through, sink, until_idle=True))
    assert not again.has_ended_within(0.1)
    assert sink.values == []
    stuck.go.set()
    again.result()
    assert (sink.values, stuck.transport.committed_sequence) == ([b"late"], 0)
    assert (stuck.most_at_once, stuck.rewinds) == (1, 1)


def test_a_shutdown_cancels_an_async_receive() -> None:
    cancelled, waits = threading.Event(), threading.Event()

    class Waiting(AsyncReceiver):
        async def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
            waits.set()
            try:
                await asyncio.sleep(NEVER)
            finally:
                cancelled.set()
            raise AssertionError

    shutdown = threading.Event()
    receiver = Waiting(holding(1))
    running = Background(lambda: BatchEngine(QUICK).run(receiver, through, Sink(), shutdown=shutdown))
    assert waits.wait(PATIENCE)
    shutdown.set()
    running.result()
    assert cancelled.is_set()


# Cancellation


def test_a_cancelled_run_ends_a_receive_that_ignores_its_timeout(stuck: Stuck) -> None:
    async def main() -> None:
        running = asyncio.ensure_future(BatchEngine(QUICK).run_async(stuck, through, Sink()))
        await asyncio.to_thread(stuck.waits.wait, PATIENCE)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, PATIENCE / 2)

    on_a_loop(main())


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_run_that_is_cancelled_anywhere_loses_nothing_and_commits_nothing_that_was_not_sunk(
    kind: str, is_async: bool
) -> None:
    """Its own suspensions, and each suspension of a coroutine that it runs."""

    async def main() -> int:
        engine = BatchEngine(QUICK, dlq=DlqPolicy.discard())
        transport, sink, places = holding(4), Sink(), itertools.count()
        receiver: Any = AsyncReceiver(transport) if is_async else transport
        cancel_at = 0
        task: asyncio.Future[Any] | None = None

        def at(fn: Callable[..., Any]) -> Callable[..., Any]:
            async def call(*args: Any) -> Any:
                for _ in range(2):
                    if next(places) == cancel_at and task is not None:
                        task.cancel()
                    await asyncio.sleep(0)
                return fn(*args)

            return call

        def check() -> None:
            committed = 0 if transport.committed_sequence is None else transport.committed_sequence + 1
            assert len(sink.values) >= committed
            assert sink.values[:committed] == [b"0", b"1", b"2", b"3"][:committed]
            assert not threads()

        for cancel_at in itertools.count():
            transport, sink, places = holding(4), Sink(), itertools.count()
            receiver = AsyncReceiver(transport) if is_async else transport
            before = asyncio.all_tasks()
            task = asyncio.ensure_future(engine.run_async(receiver, at(through), at(sink), until_idle=True))
            with suppress(asyncio.CancelledError):
                await task
            was_cancelled, task = task.cancelled(), None
            assert asyncio.all_tasks() == before
            check()
            await engine.run_async(receiver, at(through), at(sink), until_idle=True)
            check()
            assert (sink.values, transport.committed_sequence) == ([b"0", b"1", b"2", b"3"], 3)
            if not was_cancelled:
                return cancel_at
        raise AssertionError

    assert on_a_loop(main(), kind) == 8


@pytest.mark.parametrize("kind", LOOPS)
def test_a_run_that_is_cancelled_at_its_own_suspensions_is_repeated_without_loss(kind: str) -> None:
    transport, sink, engine = holding(4), Sink(), BatchEngine(QUICK)

    def make() -> Coroutine[Any, Any, Any]:
        nonlocal transport, sink
        transport, sink = holding(4), Sink()
        return engine.run_async(transport, as_async(through), as_async(sink), until_idle=True)

    async def check(outcome: Outcome[Any]) -> None:
        assert not threads()
        await engine.run_async(transport, through, sink, until_idle=True)
        assert (sink.values, transport.committed_sequence) == ([b"0", b"1", b"2", b"3"], 3)

    assert on_a_loop(cancel_at_each_suspension(make, check), kind) >= 4


async def cancelled_once(event: threading.Event, running: Coroutine[Any, Any, Any]) -> None:
    """Run it, and cancel it when the event is set."""
    task = asyncio.ensure_future(running)
    assert await asyncio.to_thread(event.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain commit", "async commit"])
def test_what_a_plain_sink_delivers_while_its_run_is_cancelled_is_committed(kind: str, is_async: bool) -> None:
    transport, sink, begun, go = holding(4), Sink(), threading.Event(), threading.Event()

    def slow(batch: WorkBatch) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        sink(batch)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.1, go.set)
        receiver = AsyncReceiver(transport) if is_async else transport
        await cancelled_once(begun, BatchEngine(QUICK).run_async(receiver, through, slow))
        assert (sink.values, transport.committed_sequence) == ([b"0", b"1"], 1)

    on_a_loop(main(), kind)


class SlowCommit(AsyncReceiver):
    """A commit takes this long."""

    def __init__(self, transport: MemoryTransport, seconds: float) -> None:
        super().__init__(transport)
        self.committing, self._seconds = threading.Event(), seconds

    async def commit(self, tokens: Any) -> None:
        self.committing.set()
        await asyncio.sleep(self._seconds)
        self.transport.commit(tokens)


@pytest.mark.parametrize("kind", LOOPS)
def test_a_commit_that_is_in_progress_ends_before_a_cancelled_run(kind: str) -> None:
    async def main() -> None:
        receiver, sink = SlowCommit(holding(4), 0.1), Sink()
        await cancelled_once(receiver.committing, BatchEngine(QUICK).run_async(receiver, through, sink))
        assert (sink.values, receiver.transport.committed_sequence) == ([b"0", b"1"], 1)

    on_a_loop(main(), kind)


class LaterIsSooner(asyncio.SelectorEventLoop):
    """Waits 1 ms for each second."""

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_later(delay / 1000, callback, *args, context=context)


def test_a_commit_that_does_not_end_is_cancelled_some_seconds_after_the_run() -> None:
    async def main() -> None:
        receiver = SlowCommit(holding(4), NEVER * 1000)
        await cancelled_once(receiver.committing, BatchEngine(QUICK).run_async(receiver, through, Sink()))
        assert receiver.transport.committed_sequence is None

    with asyncio.Runner(loop_factory=LaterIsSooner) as runner:
        runner.run(main())


@pytest.mark.parametrize("way", ["run", *LOOPS])
def test_a_future_of_a_loop_that_does_not_run_is_refused_and_one_that_is_done_is_not(way: str) -> None:
    idle = asyncio.new_event_loop()
    try:
        done = idle.create_future()
        done.set_result(None)
        source = holding(1)
        run(BatchEngine(QUICK), way, source, through, lambda batch: done, until_idle=True)
        assert source.committed_sequence == 0
        with pytest.raises(SinkFailed, match="it returned a Future, which nothing awaits"):
            run(BatchEngine(QUICK), way, holding(1), through, lambda batch: idle.create_future(), until_idle=True)
    finally:
        idle.close()


async def an_async_generator(*_: object) -> Any:
    yield 1


def a_generator(*_: object) -> Any:
    yield 1


@pytest.mark.parametrize("way", ["run", *LOOPS])
def test_an_async_generator_is_refused_wherever_a_function_is_expected(way: str) -> None:
    def all_dead(batch: WorkBatch) -> WorkBatch:
        return WorkBatch((), dead_letters=[DeadLetter(b"x", "dead")])

    engine, words = BatchEngine(QUICK, dlq=DlqPolicy.route(an_async_generator)), "must not have a `yield`"
    with pytest.raises(ProcessFailed, match="must return a WorkBatch, not async_generator"):
        run(engine, way, holding(1), an_async_generator, Sink(), until_idle=True)
    with pytest.raises(SinkFailed, match=words):
        run(engine, way, holding(1), through, an_async_generator, until_idle=True)
    with pytest.raises(DeadLetterRouteFailed, match=words):
        run(engine, way, holding(1), all_dead, Sink(), until_idle=True)


@pytest.mark.parametrize("way", ["run", *LOOPS])
@pytest.mark.parametrize("generates", [a_generator, an_async_generator])
def test_a_ticker_that_is_a_generator_is_an_error_in_the_log(
    way: str, generates: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = itertools.count(0.0, 10.0)
    engine = BatchEngine(QUICK, clock=lambda: next(clock))
    run(engine, way, holding(1), through, Sink(), ticker=(1.0, generates), until_idle=True)
    assert "which has done nothing yet" in caplog.text


# Several runs


def test_two_runs_of_one_receiver_are_refused(stuck: Stuck) -> None:
    shutdown, engine = threading.Event(), BatchEngine(QUICK)
    running = Background(lambda: engine.run(stuck, through, Sink(), shutdown=shutdown))
    assert stuck.waits.wait(PATIENCE)
    with pytest.raises(InvalidInput, match="is received from by another run"):
        engine.run(stuck, through, Sink(), until_idle=True)
    shutdown.set()
    running.result()


def test_an_engine_drives_several_receivers_at_once() -> None:
    count = 4
    together, sources = threading.Barrier(count), [holding(100) for _ in range(count)]
    engine, sinks = BatchEngine(EngineConfig(max_records=10, recv_timeout=0)), [Sink() for _ in range(count)]

    def process(batch: WorkBatch) -> WorkBatch:
        together.wait(PATIENCE)  # all of them are at work
        return batch

    runs = [
        Background(lambda source=source, sink=sink: engine.run(source, process, sink, until_idle=True))  # type: ignore[misc]
        for source, sink in zip(sources, sinks, strict=True)
    ]
    for one in runs:
        one.result()
    assert [len(sink.values) for sink in sinks] == [100] * count
    assert (engine.stats.received, engine.stats.processed) == (100 * count, 100 * count)


def test_a_run_that_fails_does_not_hurt_the_others() -> None:
    """The others are at work when it fails, and after that."""
    count, failing = 4, 2
    together, has_failed = threading.Barrier(count), threading.Event()
    engine, sinks = BatchEngine(EngineConfig(max_records=10, recv_timeout=0)), [Sink() for _ in range(count)]
    sources = [holding(100) for _ in range(count)]

    def run(number: int) -> None:
        def process(batch: WorkBatch) -> WorkBatch:
            if batch.commit_tokens[0] == 50:
                together.wait(PATIENCE)
                if number == failing:
                    raise Fault("planned")
                assert has_failed.wait(PATIENCE)
            return batch

        try:
            engine.run(sources[number], process, sinks[number], until_idle=True)
        except ProcessFailed:
            has_failed.set()

    for one in [Background(lambda number=number: run(number)) for number in range(count)]:  # type: ignore[misc]
        one.result()
    assert [source.committed_sequence for source in sources] == [49 if n == failing else 99 for n in range(count)]
    assert [len(sink.values) for sink in sinks] == [50 if n == failing else 100 for n in range(count)]
    stats = engine.stats
    assert (stats.received, stats.processed, stats.errors) == (100 * count - 40, 100 * count - 50, 1)
    assert not engine.healthy


def test_an_engine_drives_several_async_runs_at_once() -> None:
    async def main() -> None:
        engine, arrived, everyone = BatchEngine(QUICK), list[int](), asyncio.Event()

        async def process(batch: WorkBatch) -> WorkBatch:
            arrived.append(1)
            if len(arrived) == 3:
                everyone.set()
            await asyncio.wait_for(everyone.wait(), PATIENCE)
            return batch

        sources = [holding(2) for _ in range(3)]
        await asyncio.gather(*(engine.run_async(source, process, Sink(), until_idle=True) for source in sources))
        assert [source.committed_sequence for source in sources] == [1, 1, 1]

    on_a_loop(main())
