"""The one loop of the engine: for whole blocks and for pieces, parsed or not, regulated or not."""

from __future__ import annotations

import inspect
import math
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from penstock import metrics
from penstock.core import current, get_logger
from penstock.engine.calls import Calls, Stopped, can_be_awaited
from penstock.engine.dead_letters import DeadLetter, DlqPolicy, Place
from penstock.engine.delivery import AsyncDelivery, close_if_coroutine, wait_for_delivery
from penstock.engine.parsing.parsed_batch import ParsedBatch, ParseErrorAction
from penstock.engine.parsing.payload_format import ParseFormat
from penstock.engine.parsing.payload_schemas import PayloadSchemas
from penstock.engine.receiving import Receiving
from penstock.engine.regulation.budget import Governor
from penstock.engine.regulation.guard import MemoryGuard
from penstock.engine.regulation.inbound import Inbound
from penstock.engine.shutdown import Shutdown
from penstock.engine.stats import Tally
from penstock.engine.ticker import Ticker
from penstock.engine.transports.contract import Receiver
from penstock.engine.work_batch import WorkBatch
from penstock.errors import (
    CommitFailed,
    DeadLetterRouteFailed,
    DeadLettersUnrouted,
    EngineError,
    InvalidInput,
    ProcessFailed,
    ReceiveFailed,
    SinkFailed,
)

Process: TypeAlias = Callable[[Any], WorkBatch | Awaitable[WorkBatch]]
Sink: TypeAlias = Callable[[WorkBatch], AsyncDelivery]
Answer = TypeVar("Answer")

_HOLD_POLL_SECONDS = 0.05

_log = get_logger(__name__)


class CommitMode(StrEnum):
    """Who commits: the engine after the sink has delivered, or the sink, which has the tokens."""

    AUTO = "auto"
    SINK_MANAGED = "sink_managed"


@dataclass(kw_only=True)
class BlockLoop:
    """A run of an engine."""

    receiver: Receiver
    process: Process
    sink: Sink
    max_records: int
    recv_timeout: float
    parse_format: ParseFormat | None
    payload_schemas: PayloadSchemas
    parse_error_action: ParseErrorAction
    dlq: DlqPolicy
    commit: CommitMode
    sub_block_bytes: int | None
    guard: MemoryGuard
    governor: Governor | None
    ticker: Ticker
    tally: Tally
    clock: Callable[[], float]
    calls: Calls
    receiving: Receiving
    home: int = field(default_factory=lambda: current.number, init=False)
    origin: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)
    blocks: int = field(default=0, init=False)
    block_since: float | None = field(default=None, init=False)
    """By the clock, when the block in progress was received."""

    def run(self, shutdown: Shutdown, *, until_idle: bool) -> None:
        """Move blocks until `shutdown` is set, the input ends, or, with `until_idle`, until the receiver is empty."""
        inbound = Inbound(self.governor, self.clock, self.receiver)
        self.receiver.use_guard(self.guard)
        try:
            self._move_blocks(inbound, shutdown, until_idle=until_idle)
            self.receiver.end_run()
        except Stopped:
            self._rewind()
        except BaseException as error:
            self.tally.add(errors=isinstance(error, EngineError))
            self._rewind()
            raise
        finally:
            inbound.release()

    def _move_blocks(self, inbound: Inbound, shutdown: Shutdown, *, until_idle: bool) -> None:
        busy_until = self.clock()
        while not shutdown.is_set():
            self.calls.check()
            if not self.ticker.seconds_until_due:
                self.ticker.tick(self.calls.settle)
                self.calls.check()
                if shutdown.is_set():
                    return
            if not inbound.is_admitted(is_in_memory=self.receiver.in_hand):
                shutdown.wait(min(_HOLD_POLL_SECONDS, self.ticker.seconds_until_due))
                continue
            budget, max_records = inbound.byte_budget, min(self.max_records, inbound.record_cap)
            timeout = min(self.recv_timeout, self.ticker.seconds_until_due)
            receive = partial(self.receiver.recv, max_records, max_bytes=budget, timeout=timeout)
            block = self._at(ReceiveFailed, "the receiver", None, self._receive, receive, shutdown)
            received, size = self.clock(), block.total_bytes
            # Records that filters dropped were received too: more may come behind them.
            count = len(block) + len(block.dead_letters) + block.filtered
            self.tally.add(received=count, filtered=block.filtered, bytes=size)
            if not count and not block.commit_tokens:
                inbound.note_idle()
                # A receive that the ticker has cut short does not show that the source is empty.
                is_idle = until_idle and max(timeout, received - busy_until) >= self.recv_timeout
                ended = self.receiver.exhausted  # None: it does not know
                if ended or (is_idle and ended is None):
                    return
                continue
            metrics.recv_block_bytes.set(size)
            self.block_since = received
            self._work(block.at(Place(self.origin, self.blocks)), budget)
            self.block_since = None
            self.blocks += 1
            busy_until = self.clock()
            inbound.note_block(size, busy_until - received)

    def _work(self, block: WorkBatch, budget: int | None) -> None:
        """Do everything with a block, in the order that `docs/design/engine.md` gives reasons for."""
        tokens = block.commit_tokens  # before `process`, which cannot change them that way
        if block.dead_letters:
            self._route(block.dead_letters, block)
        most = math.inf if budget is None else budget
        if self.sub_block_bytes is not None:
            most = min(most, self.sub_block_bytes)
        is_one_piece = len(block) < 2 or 0 < most >= block.total_bytes
        for piece in (block,) if is_one_piece else self._pieces(block, int(most)):
            with self.guard.lease(piece.total_bytes):
                self._work_on_piece(piece, piece.commit_tokens)
        if self.home != current.number:
            raise CommitFailed(
                f"{block!r} was received by the process {self.home}, which commits it; this is a child that was forked "
                "during the block, and must not return into the engine's loop: end it with os._exit"
            )
        if self.commit is CommitMode.AUTO and tokens:
            what = "the commit of {!r} (which may have happened all the same)"
            self._at(CommitFailed, what, block, self._commit, tokens)
        self.receiver.release_block()

    def _pieces(self, block: WorkBatch, most: int) -> Iterator[WorkBatch]:
        """Cut a block, lazily, into pieces of so many bytes or one record. At most the last has its tokens."""
        start = 0
        while start < len(block):
            count = max(block.rows_within(start, most), 1) if most else 1
            if count == len(block):
                yield block  # of the user's own columns, whose rows are shorter as JSON
                return
            piece = block.piece(start, start + count)
            start += count
            hands_over = start == len(block) and self.commit is CommitMode.SINK_MANAGED
            yield piece.with_tokens(block.commit_tokens) if hands_over else piece

    def _work_on_piece(self, piece: WorkBatch, tokens: tuple[Any, ...]) -> None:
        parsed: ParsedBatch | None = None
        if self.parse_format is not None and not piece.is_empty:
            parsed = ParsedBatch.parse(
                piece,
                self.parse_format,
                self.parse_error_action,
                payload_schemas=self.payload_schemas,
                place=piece.place,
            )
        given = piece if parsed is None else parsed
        dropped_before = len(piece.place.dropped)
        try:
            processed = (
                WorkBatch(())
                if given.is_empty
                else self._at(ProcessFailed, "the processing of {!r}", given, self._process, given)
            )
        except ProcessFailed as error:
            if parsed is not None and parsed.failure is not None and parsed.failure is error.__cause__:
                raise parsed.failure from None  # `process` asked for columns, and a record does not fit into them
            raise
        if parsed is not None:
            parsed.seal()
        # After `process`: where it asks for columns, records that do not fit into them become dead letters.
        known = piece.dead_letters if parsed is None else parsed.dead_letters
        if known or processed.dead_letters:
            self._route(piece.place.to_route(known, processed.dead_letters), piece)
        if not processed.is_empty or (self.commit is CommitMode.SINK_MANAGED and tokens):
            sunk = processed.with_tokens(tokens)
            self._at(SinkFailed, "the sink, given {!r},", processed, self._deliver, self.sink, sunk)
        self.tally.add(processed=len(given), dropped_letters=len(piece.place.dropped) - dropped_before)
        if parsed is not None:
            self.tally.add(errors=parsed.errors)

    def _route(self, letters: Sequence[DeadLetter], batch: WorkBatch) -> None:
        count = len(letters)
        if not count:
            return
        if self.dlq.name == "reject":
            first = letters[0]
            raise DeadLettersUnrouted(
                f"{count} dead letters in {batch!r}, and no route for them; the first, of stage {first.stage}: "
                f"{first.reason}. Nothing was committed. DlqPolicy.route(fn) takes them, DlqPolicy.discard() drops them"
            )
        if self.dlq.send is not None:
            what = "the route of {} dead letters"
            self._at(DeadLetterRouteFailed, what, count, self._deliver, self.dlq.send, list(letters))
        batch.place.note_routed(letters)
        self.tally.add(dead_lettered=count)

    def _rewind(self) -> None:
        if self.home != current.number or self.receiving.is_behind:
            return  # the receiver is the parent's; or is rewound when the receive that is still on its way has ended
        try:
            self.receiver.rewind()
        except Exception:  # noqa: BLE001  the error that ended the run is raised; a restart rewinds too
            _log.exception("%r could not be rewound", self.receiver)

    def _at(
        self, place: type[EngineError], what: str, given: object, call: Callable[..., Answer], *args: object
    ) -> Answer:
        """Call something; if it fails, raise the error of this place, in which `what` is put together with `given`.

        A run that is cancelled begins nothing more, but for the commit of what has been delivered: else that would be
        delivered twice.
        """
        if place is not CommitFailed:
            self.calls.check()
        try:
            answer = call(*args)
        except Exception as error:
            self.calls.check()  # what fails in a run that is cancelled fails because of that
            failed = f"{what.format(given)} failed, and nothing of the block was committed: {_described(error)}"
            raise place(failed) from error
        if place in (ReceiveFailed, ProcessFailed):
            self.calls.check()
        return answer

    def _receive(self, receive: Callable[[], object], shutdown: Shutdown) -> WorkBatch:
        return _checked("recv", self.receiving(receive, shutdown.is_set))

    def _process(self, given: object) -> WorkBatch:
        return _checked("process", self.calls.settle(self.process(given)))

    def _commit(self, tokens: tuple[Any, ...]) -> None:
        commit: Callable[[tuple[Any, ...]], object] = self.receiver.commit  # of an async one, a coroutine
        self.calls.settle(commit(tokens), finishes=True)

    def _deliver(self, fn: Callable[[Any], object], given: object) -> None:
        returned = fn(given)
        if inspect.iscoroutine(returned):  # an async function returns what a plain one may
            returned = self.calls.settle(returned)
        if returned is not None:
            wait_for_delivery(returned, lambda one: self.calls.start(one) if can_be_awaited(one) else None)


def _described(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  a user's exception without a working __str__ must not hide the place
        return type(error).__name__


def _checked(what: str, returned: object) -> WorkBatch:
    if not isinstance(returned, WorkBatch):
        close_if_coroutine(returned)
        raise InvalidInput(f"{what} must return a WorkBatch, not {type(returned).__name__}")
    return returned
