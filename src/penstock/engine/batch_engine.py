"""`BatchEngine`: moves blocks from a receiver to a sink, and acks them. Its invariants: `docs/design/engine.md`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from penstock.core import as_word, check_config, check_seconds, check_whole
from penstock.engine.async_run import in_thread
from penstock.engine.block_loop import BlockLoop, CommitMode, Process, Sink
from penstock.engine.calls import Calls
from penstock.engine.dead_letters import DlqPolicy
from penstock.engine.parsing.parsed_batch import ParseErrorAction
from penstock.engine.parsing.payload_format import ParseFormat
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas, check_schemas, format_to_parse
from penstock.engine.receiving import AsyncReceives, Receiving, Use
from penstock.engine.regulation.budget import Governor, SelfRegulation
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.snapshot import Regulation
from penstock.engine.runs import Health, Runs
from penstock.engine.shutdown import Shutdown
from penstock.engine.stats import EngineStats, Tally
from penstock.engine.ticker import Ticker, Ticks
from penstock.engine.transports.contract import Receiver, Receives, as_receiver
from penstock.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine receives and parses. Raises `InvalidInput` naming the field, the value and what is allowed.

    >>> EngineConfig(max_records=0)
    Traceback (most recent call last):
        ...
    penstock.errors.InvalidInput: max_records must be an integer, 1 or more, not 0
    """

    max_records: int = 1_000_000
    recv_timeout: float = 0.1
    parse_format: str = ParseFormat.JSON
    parse_error_action: str = ParseErrorAction.DLQ
    payload_schemas: PayloadSchemas = NO_SCHEMAS

    def __post_init__(self) -> None:
        check_whole("max_records", self.max_records)
        check_seconds("recv_timeout", self.recv_timeout, zero=True)
        object.__setattr__(self, "parse_format", as_word("parse_format", ParseFormat, self.parse_format))
        check_schemas("payload_schemas", self.payload_schemas)
        self.payload_schemas.check("parse_format", self.parse_format)
        action = as_word("parse_error_action", ParseErrorAction, self.parse_error_action)
        object.__setattr__(self, "parse_error_action", action)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, checked."""

    commit: CommitMode
    ticker: Ticks | None
    parse: bool | str
    sub_block_bytes: int | None
    _: KW_ONLY
    until_idle: bool

    def __post_init__(self) -> None:
        if self.sub_block_bytes is not None:
            check_whole("sub_block_bytes", self.sub_block_bytes, 0)


_CONFIG = EngineConfig()
_REJECT = DlqPolicy.reject()
_REGULATED = SelfRegulation()


class BatchEngine:
    """Runs one block at a time: receive, process, sink, commit. What was not delivered is never committed.

    `dlq` is the policy for dead letters; `regulation` keeps memory and blocks within bounds (None: off, and blocks are
    as large as the receiver makes them). Several runs at the same time, each with a receiver of its own, share the
    stats, the memory guard and the regulation. One that is not running can be used in a forked child.

    >>> from penstock.engine import MemoryTransport
    >>> source, target = MemoryTransport(), MemoryTransport()
    >>> _ = source.inject(b"hello")
    >>> BatchEngine().run(source, lambda batch: batch, target.send, until_idle=True).processed
    1
    >>> source.committed_sequence
    0
    """

    def __init__(
        self,
        config: EngineConfig = _CONFIG,
        *,
        dlq: DlqPolicy = _REJECT,
        regulation: SelfRegulation | None = _REGULATED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_config(config, EngineConfig)
        if not isinstance(dlq, DlqPolicy):
            raise InvalidInput(f"dlq must be a DlqPolicy, such as DlqPolicy.discard(), not {type(dlq).__name__}")
        if regulation is not None and not isinstance(regulation, SelfRegulation):
            raise InvalidInput(f"regulation must be a SelfRegulation or None, not {type(regulation).__name__}")
        self._config = config
        self._dlq = dlq
        self._clock = clock
        self._tally = Tally()
        self._guard = (regulation.guard if regulation is not None else None) or MemoryGuard()
        self._governor = None if regulation is None else Governor(regulation, self._guard)
        self._regulation = Regulation(self._governor, clock)
        self._runs = Runs(self._regulation, clock)

    def __repr__(self) -> str:
        return f"BatchEngine({self._config!r})"

    @property
    def stats(self) -> EngineStats:
        """The counts so far, of all runs."""
        return self._tally.stats()

    @property
    def guard(self) -> MemoryGuard:
        """The guard in which the bytes of the block in memory are leased."""
        return self._guard

    @property
    def regulation(self) -> Regulation:
        """What regulates the runs: `engine.regulation.snapshot()` reads the budget, the pressure and the hold."""
        return self._regulation

    @property
    def healthy(self) -> Health:
        """Whether its runs go on, and if not, the reason. True in a condition if they do."""
        return self._runs.health()

    def run(
        self,
        receiver: Receiver | Receives | AsyncReceives,
        process: Process,
        sink: Sink,
        *,
        commit: CommitMode | str = CommitMode.AUTO,
        shutdown: threading.Event | asyncio.Event | None = None,
        ticker: Ticks | None = None,
        parse: bool | str = False,
        sub_block_bytes: int | None = None,
        until_idle: bool = False,
    ) -> EngineStats:
        """Run until `shutdown` is set, or, with `until_idle`, until the receiver is empty. Return the stats.

        `process(batch)` makes a `WorkBatch` of a `WorkBatch`, or with `parse` of a `ParsedBatch`. `sink(batch)` returns
        None when the batch is durable; or a `WriteHandle`, a `concurrent.futures.Future`, an awaitable, or a list of
        these, which are waited for. Anything else that it returns is a `SinkFailed`: it may be work that has not begun.

        `process`, `sink`, the dead letters' route, the ticker, and the receiver's `recv` and `commit` may each be plain
        or async. Coroutines run on an event loop of this run, in a thread of its own.

        `parse` is True for payloads in the configuration's `parse_format`, or "json-values" for any JSON value each.

        With `CommitMode.SINK_MANAGED` the sink has the tokens, and commits. `sub_block_bytes` cuts a block into pieces
        of at most so many bytes. `ticker` is (seconds, function). `shutdown` ends the run after the block in progress,
        and a pending receive at once.

        Whatever fails ends the run with an `EngineError` that names the place and has the cause; nothing of the block
        was committed, and the next run gets it again. Raises `InvalidInput` for what cannot be run.
        """
        options = Options(as_word("commit", CommitMode, commit), ticker, parse, sub_block_bytes, until_idle=until_idle)
        ends = Shutdown(shutdown)
        self._run(receiver, process, sink, options, ends, Calls(), can_stop=shutdown is not None)
        return self.stats

    async def run_async(
        self,
        receiver: Receiver | Receives | AsyncReceives,
        process: Process,
        sink: Sink,
        *,
        commit: CommitMode | str = CommitMode.AUTO,
        shutdown: threading.Event | asyncio.Event | None = None,
        ticker: Ticks | None = None,
        parse: bool | str = False,
        sub_block_bytes: int | None = None,
        until_idle: bool = False,
    ) -> EngineStats:
        """Run as `run` does, in a thread, while the event loop goes on. Coroutines run on the caller's loop.

        Plain functions are called in the thread, and may block. Cancelled, it cancels the coroutine in progress, ends a
        pending receive, and waits for a plain function that is running; the block is not committed, and comes again.
        A block that the sink has delivered is committed first (an async commit has 5 seconds for that), so that it is
        not delivered twice. `CancelledError` is raised after the thread has ended.
        """
        options = Options(as_word("commit", CommitMode, commit), ticker, parse, sub_block_bytes, until_idle=until_idle)
        ends, calls = Shutdown(shutdown), Calls(asyncio.get_running_loop())
        await in_thread(lambda: self._run(receiver, process, sink, options, ends, calls, can_stop=True), calls)
        return self.stats

    def _run(
        self,
        given: Receiver | Receives | AsyncReceives,
        process: Process,
        sink: Sink,
        options: Options,
        shutdown: Shutdown,
        calls: Calls,
        *,
        can_stop: bool,
    ) -> None:
        """A run, in the thread that calls this."""
        for name, fn in (("process", process), ("sink", sink)):
            if not callable(fn):
                raise InvalidInput(f"{name} must be a function of a batch, not {type(fn).__name__}")
        receiver, ticker = as_receiver(given), Ticker(options.ticker, self._clock)
        self._runs.check_process(self)
        use = Use.of(given)
        use.wait_for_late(lambda: shutdown.is_set() or calls.is_cancelled)
        receiving = Receiving(receiver, use, calls, in_thread=can_stop)
        loop = BlockLoop(
            receiver=receiver,
            process=process,
            sink=sink,
            max_records=self._config.max_records,
            recv_timeout=self._config.recv_timeout,
            parse_format=format_to_parse(options.parse, self._config.parse_format),
            payload_schemas=self._config.payload_schemas,
            parse_error_action=ParseErrorAction(self._config.parse_error_action),
            dlq=self._dlq,
            commit=options.commit,
            sub_block_bytes=options.sub_block_bytes,
            guard=self._guard,
            governor=self._governor,
            ticker=ticker,
            tally=self._tally,
            clock=self._clock,
            calls=calls,
            receiving=receiving,
        )
        # Neither between the lock and the `try`, nor before the release, is there a Python function that an interrupt
        # could come into.
        if not use.lock.acquire(blocking=False):
            if use.is_late:
                return  # it is to stop
            use.refuse()
        try:
            try:
                self._runs.go(loop, shutdown, self._tally, until_idle=options.until_idle)
            finally:
                try:
                    receiving.close()
                finally:
                    calls.close()
        finally:
            if not receiving.is_behind:
                use.lock.release()
