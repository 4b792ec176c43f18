"""The loop of a pipeline: plan a block, write it, ack it. Runs in the driver, in a thread of its own.

The invariants, and what a kill after each step leaves, are in `docs/design/pipeline.md`.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.buffer import BatchDescriptor
from penstock.core import get_logger
from penstock.errors import CorruptData, InvalidInput, SinkFailed
from penstock.spark.pipeline.block_plans import BlockPlans, SmallFiles
from penstock.spark.pipeline.block_writer import AlreadyThere, BlockWriter
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.spark_checkpoint import SparkCheckpoint, mark_as_read, read_spark_checkpoint
from penstock.spark.pipeline.triggers import Trigger
from penstock.spark.source.admission import Admission
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.partitions import BatchRun, plan_partitions
from penstock.spark.source.planner import Planner
from penstock.spark.tables.contract import BlockId, Position, Sink, accepted_restore

_MAX_LOSSES = 20  # of one block, one after the other
_PLAIN_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A block that is committed and acked: what `Pipeline.on_block` hands over.

    `lag_batches`, `lag_events` and `lag_bytes` are what waited behind it; None where the manifest does not say.
    `lag_seconds` is the age of the oldest event that waited.
    """

    name: str
    first: int
    end: int
    rows: int
    bytes: int
    dead_letters: int
    seconds: float
    lag_batches: int
    lag_events: int | None
    lag_bytes: int | None
    lag_seconds: float | None


class BlockLoop:
    """Blocks of one run, until it is to stop or, with `available_now`, until what was queued at its start is done."""

    def __init__(
        self,
        options: ReadOptions,
        writer: BlockWriter,
        trigger: Trigger,
        *,
        cores: int,
        progress: Progress,
        should_stop: Callable[[float], bool],
        files: SmallFiles | None,
        shown_checkpoint: str = "",
        on_block: Callable[[BlockReport], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._writer = writer
        self._trigger = trigger
        self._cores = cores
        self._progress = progress
        self._should_stop = should_stop
        self._files = files
        self._shown_checkpoint = shown_checkpoint
        self._on_block = on_block
        self._clock = clock
        self._admission = Admission() if options.self_regulation else None
        self._at = 0
        self._there: AlreadyThere | None = None

    def run(self) -> None:
        """Run blocks. Raises `Fenced`, and what went wrong in a block; nothing of that block is acked then."""
        self._progress.say("claiming the group")
        with Planner(self._options) as planner:
            self._planner = planner
            self._query = query_of(planner.buffer_id, self._options.group)
            keeps_position = self._writer.sink.keeps_position
            self._plans = None if keeps_position or self._files is None else BlockPlans(self._files, self._query)
            planner.look(fresh=True)
            target = planner.next_sequence if self._trigger.available_now else None
            self._take_over_checkpoint()
            self._find_position()
            self._progress.say("reading")
            self._run_blocks(target)
            if target is not None:
                planner.collect_if_due()

    def _run_blocks(self, target: int | None) -> None:
        losses, due = 0, self._clock()
        while not self._should_stop(max(due - self._clock(), 0.0)):
            looked = self._planner.look()
            stop = self._planner.next_sequence if target is None else min(self._planner.next_sequence, target)
            if stop <= self._at:
                if target is not None:
                    return
                if self._admission is not None and looked:
                    self._admission.note_idle()
                self._note_lag()
                due = self._clock() + self._options.poll_interval
                continue
            end = self._choose_end(stop)
            if end is None:
                return
            began = self._clock()
            losses = 0 if self._run_block(end, began) else losses + 1
            if losses >= _MAX_LOSSES:
                raise SinkFailed(
                    f"the block at sequence {self._at} was written {losses} times and was not committed: another "
                    "process changes the table all the time"
                )
            due = began + self._trigger.interval

    def _choose_end(self, stop: int) -> int | None:
        """Where the next block ends; None if the run is to stop."""
        if self._there is not None:
            return self._there.end
        planned = None if self._plans is None else self._plans.read(self._at)
        if planned is not None and self._plans is not None:
            self._check_position(planned, self._at, "the plan beside the checkpoint")
            return self._plans.write(self._at, planned.end, planned.last or "")  # it may not be durable yet
        budget = None if self._admission is None else self._admission.wait(lambda: self._should_stop(0.0))
        if self._should_stop(0.0):
            return None
        end, _ = self._planner.end_within(self._at, stop, budget)
        if self._plans is None:
            return end
        return self._plans.write(self._at, end, self._planner.batches(self._at, end)[-1].location)

    def _run_block(self, end: int, began: float) -> bool:
        """Write and ack a block; False if that has to begin again."""
        batches = self._planner.batches(self._at, end)
        block = BlockId(self._query, self._at, end, batches[-1].location)
        written = self._write(block, batches, began, self._there)
        if written is None:
            self._find_position()
            return False
        self._ack(end)
        self._report(written)
        return True

    def _write(
        self, block: BlockId, batches: Sequence[BatchDescriptor], began: float, there: AlreadyThere | None
    ) -> BlockReport | None:
        """Write a block, and return what to report of it once it is acked; None if it was not committed."""
        size = sum(batch.size or 0 for batch in batches)
        options = self._options
        runs: list[Any] = plan_partitions(
            batches, options.target_partition_bytes, self._cores, may_cut=options.may_cut_batches
        )
        self._progress.begin_block(size)
        done = self._writer.write(block, [run for run in runs if isinstance(run, BatchRun)], there)
        if done is None:
            _log.info("block %s was not committed: another driver was faster, or the table has changed", block.name)
            return None
        seconds = self._clock() - began
        if self._admission is not None:
            self._admission.note_block(size, seconds)
        waiting, age = self._planner.waiting_from(block.end)
        return BlockReport(
            block.name, block.first, block.end, done.rows, size, done.dead, seconds,
            waiting.batches, waiting.records, waiting.size, age,
        )  # fmt: skip

    def _ack(self, end: int) -> None:
        self._planner.ack_before(end)
        self._at = end
        if self._there is not None and self._there.end <= end:
            self._find_what_is_there()
        if self._plans is not None:
            self._plans.forget_before(end)
        if self._writer.keys is not None:
            _, age = self._planner.waiting_from(end)
            self._writer.keys.forget_before(time.time() - (age or 0.0))

    def _find_position(self) -> None:
        """Learn from the tables how far they are, and ack what they have.

        Where the letters are further than the rows, the next block ends where the letters do: only its rows are
        missing.
        """
        self._at = frontier = max(self._planner.first_sequence, self._at)
        rows = self._position_in(self._writer.sink, "the table")
        if rows is not None and rows.end > frontier:
            self._check_position(rows, frontier, "the table")
            _log.info("the table is at sequence %d, and the group at %d: acking what is there", rows.end, frontier)
            self._ack(rows.end)
        self._find_what_is_there()

    def _find_what_is_there(self) -> None:
        """Where letters or keys are further than the rows, the next block ends where the nearer of them does."""
        writer = self._writer
        letters = None if writer.letters is None else self._position_in(writer.letters, "the dead letters' table")
        keys = None if writer.keys is None else writer.keys.table.position(self._query)
        further = [one for one in (letters, keys) if one is not None and one.end > self._at]
        self._there = None
        for one in further:
            self._check_position(one, self._at, "the dead letters' table" if one is letters else "the keys' table")
        if further:
            end = min(one.end for one in further)
            dead = letters.rows if letters is not None and (letters.first, letters.end) == (self._at, end) else None
            self._there = AlreadyThere(
                end,
                has_letters=letters is not None and letters.end >= end,
                dead=dead,
                has_keys=keys is not None and keys.end >= end,
            )

    def _position_in(self, sink: Sink, what: str) -> Position | None:
        """How far a sink is. Where a table was restored, events that are gone from it come again, if they are queued.

        Raises `CorruptData` if some of those are acked, unless the table's property says that they may be gone.
        """
        position = sink.position(self._query)
        if position is None or position.restored is None:
            return position
        gone_from, is_accepted = position.restored.gone_from, position.restored.is_accepted
        if gone_from < self._at and not is_accepted:
            raise CorruptData(
                f"{what} was restored to an older version: it had the events up to sequence {position.end - 1}, and "
                f"those from {gone_from} on are gone from it. {self._planner.where} has none before sequence "
                f"{self._at}: they are acked. Nothing is read or acked. To have them back, restore {what} to its "
                "newest version before that; to go on without them, set its property "
                f"'{accepted_restore(self._query)}' to '{position.end}'"
            )
        again_from = max(gone_from, self._at)
        if again_from >= position.end:
            return position
        _log.warning("%s was restored: the events from sequence %d on come again", what, again_from)
        sink.move_back(self._query, again_from)
        return sink.position(self._query)

    def _check_position(self, position: Position, frontier: int, what: str) -> None:
        """Raise `CorruptData` where a position is not of this buffer as it is now."""
        self._planner.look(fresh=True)
        has = self._planner.next_sequence
        if position.end > has:
            raise CorruptData(
                f"{what} is at sequence {position.end}, and the next sequence of {self._planner.where} is {has}: the "
                "buffer has lost its last writes. Nothing is read or acked: events that come now would be taken for "
                f"those that are there. Drop what is behind sequence {has - 1} from {what}, or write to another one"
            )
        last = self._planner.batches(frontier, position.end)[-1]
        if position.last and position.last != last.location:
            raise CorruptData(
                f"{what} has the events up to sequence {position.end - 1}, of which the last were in {position.last}, "
                f"and {self._planner.where} has {last.location} there: the buffer has lost its last writes, and other "
                f"events have their sequences. Nothing is read or acked: write to another table"
            )

    def _take_over_checkpoint(self) -> None:
        """Honour, once, the checkpoint of a Penstock that ran on Structured Streaming."""
        if self._files is None:
            return
        found = read_spark_checkpoint(self._files, self._planner.buffer_id, self._shown_checkpoint)
        if found is None:
            return
        frontier = self._planner.first_sequence
        if found.end < frontier:
            raise InvalidInput(
                f"the checkpoint {self._shown_checkpoint} goes on at sequence {found.end}, and {self._planner.where} "
                f"is acked up to {frontier - 1}: the checkpoint is older than the acks, and what is between is gone; "
                "was it restored, or did another query read this group? To go on at the acks, use a new checkpoint"
            )
        _log.info(
            "taking over the checkpoint %s of a streaming query, at sequence %d", self._shown_checkpoint, found.end
        )
        if found.done is not None and found.done > frontier:
            self._planner.batches(frontier, found.done)
            self._planner.ack_before(found.done)
        self._at = self._planner.first_sequence
        self._finish_planned(found)
        mark_as_read(self._files)

    def _finish_planned(self, found: SparkCheckpoint) -> None:
        """Do the block that Spark had planned, under the name it had: a sink that has it takes nothing."""
        old = found.planned
        if old is None or old.end <= self._at:
            return
        block = BlockId(old.query, self._at, old.end, number=old.number)
        batches = self._planner.batches(block.first, block.end)
        written: BlockReport | None = None
        if not self._writer.sink.has(block):
            letters, keys = self._writer.letters, self._writer.keys
            there = AlreadyThere(
                block.end,
                has_letters=letters is not None and letters.has(block),
                has_keys=keys is not None and keys.table.has(block),
            )
            written = self._write(block, batches, self._clock(), there)
            if written is None and not self._writer.sink.has(block):
                raise SinkFailed(
                    f"the block {block.name} of the checkpoint was not committed, and is not there: run again"
                )
        self._planner.ack_before(old.end)
        self._at = old.end
        if written is not None:
            self._report(written)

    def _report(self, report: BlockReport) -> None:
        self._progress.note(report)
        try:
            self._on_block(report)
        except Exception:  # noqa: BLE001  a listener that fails must not stop the work
            _log.exception("a listener of blocks failed; the pipeline goes on")

    def _note_lag(self) -> None:
        waiting, age = self._planner.waiting_from(self._at)
        self._progress.note_lag(waiting, age)


def query_of(buffer_id: str, group: str) -> str:
    """The name under which a group of a buffer is known to tables.

    >>> query_of("0b7e", "default"), query_of("0b7e", "every / thing")
    ('0b7e.default', '0b7e.sha-66bccb6fc7184e91')
    """
    if _PLAIN_GROUP.fullmatch(group):
        return f"{buffer_id}.{group}"
    return f"{buffer_id}.sha-{hashlib.sha256(group.encode()).hexdigest()[:16]}"
