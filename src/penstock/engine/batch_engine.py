"""`BatchEngine`: moves blocks from a receiver to a sink, and acks them. Its invariants: `docs/design/engine.md`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import as_word, check_config, check_seconds, check_whole, current, refuse_in_child
from penstock.engine.block_loop import BlockLoop, CommitMode, Process, Sink
from penstock.engine.dead_letters import DlqPolicy
from penstock.engine.parsing.parsed_batch import ParseErrorAction
from penstock.engine.parsing.payload_format import ParseFormat
from penstock.engine.regulation.budget import Governor, SelfRegulation
from penstock.engine.regulation.guard import MemoryGuard
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

    def __post_init__(self) -> None:
        check_whole("max_records", self.max_records)
        check_seconds("recv_timeout", self.recv_timeout, zero=True)
        object.__setattr__(self, "parse_format", as_word("parse_format", ParseFormat, self.parse_format))
        action = as_word("parse_error_action", ParseErrorAction, self.parse_error_action)
        object.__setattr__(self, "parse_error_action", action)


_CONFIG = EngineConfig()
_REJECT = DlqPolicy.reject()
_REGULATED = SelfRegulation()


class BatchEngine:
    """Runs one block at a time: receive, process, sink, commit. What was not delivered is never committed.

    `dlq` is the policy for dead letters; `regulation` keeps memory and blocks within bounds (None: off, and blocks are
    as large as the receiver makes them). For one run at a time. One that is not running can be used in a forked child.

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
        self._running = threading.Lock()
        self._runs_in = current.number  # the process of the latest run

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

    def run(
        self,
        receiver: Receiver | Receives,
        process: Process,
        sink: Sink,
        *,
        commit: CommitMode | str = CommitMode.AUTO,
        shutdown: threading.Event | None = None,
        ticker: Ticks | None = None,
        parse: bool = False,
        sub_block_bytes: int | None = None,
        until_idle: bool = False,
    ) -> EngineStats:
        """Run until `shutdown` is set, or, with `until_idle`, until the receiver is empty. Return the stats.

        `process(batch)` makes a `WorkBatch` of a `WorkBatch`, or with `parse` of a `ParsedBatch`. `sink(batch)` returns
        None when the batch is durable; or a `WriteHandle`, a `concurrent.futures.Future`, or a list of these, which are
        waited for. Anything else that it returns is a `SinkFailed`: it may be work that has not begun.

        With `CommitMode.SINK_MANAGED` the sink has the tokens, and commits. `sub_block_bytes` cuts a block into pieces
        of at most so many bytes. `ticker` is (seconds, function).

        Whatever fails ends the run with an `EngineError` that names the place and has the cause; nothing of the block
        was committed, and the next run gets it again. Raises `InvalidInput` for what cannot be run.
        """
        if sub_block_bytes is not None:
            check_whole("sub_block_bytes", sub_block_bytes, 0)
        if shutdown is not None and not isinstance(shutdown, threading.Event):
            raise InvalidInput(f"shutdown must be a threading.Event, not {type(shutdown).__name__}")
        for name, fn in (("process", process), ("sink", sink)):
            if not callable(fn):
                raise InvalidInput(f"{name} must be a function of a batch, not {type(fn).__name__}")
        loop = BlockLoop(
            receiver=as_receiver(receiver),
            process=process,
            sink=sink,
            max_records=self._config.max_records,
            recv_timeout=self._config.recv_timeout,
            parse_format=ParseFormat(self._config.parse_format) if parse else None,
            parse_error_action=ParseErrorAction(self._config.parse_error_action),
            dlq=self._dlq,
            commit=as_word("commit", CommitMode, commit),
            sub_block_bytes=sub_block_bytes,
            guard=self._guard,
            governor=self._governor,
            ticker=Ticker(ticker, self._clock),
            tally=self._tally,
            clock=self._clock,
        )
        if not self._running.acquire(blocking=False):
            refuse_in_child(
                self._runs_in, self, "it was running there when this child was forked; make a BatchEngine here"
            )
            raise InvalidInput("this engine is running already: make one for each thread")
        self._runs_in = current.number
        try:
            loop.run(shutdown or threading.Event(), until_idle=until_idle)
        finally:
            self._running.release()
        return self.stats
