"""Replay: letters go back into a buffer as events, each once, however often this is killed and run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from penstock.buffer import BlockAppender, BlockName, BufferQueue, ProducerConfig, join_to_size
from penstock.core import get_logger
from penstock.engine.letters.ledger import Ledger, Plan
from penstock.engine.letters.letter import Filter, StoredLetter
from penstock.engine.letters.places import LetterPlace
from penstock.errors import CorruptData, InvalidInput, NotFound, StorageError
from penstock.records import Record, records_to_arrow
from penstock.storage import ObjectStore, url_of

Fix = Callable[[StoredLetter], "bytes | Record | None"]

MAX_LETTERS_PER_PLAN = 10_000
_MAX_BYTES_PER_PLAN = 8 << 20
_EVENT_OVERHEAD_BYTES = 64 << 10  # what Arrow's columns may add to an event that is alone in its batch
_HEADER_OVERHEAD_BYTES = 16
_MAX_SCANS = 5
_MAX_SHOWN_FAILURES = 5
FETCH = "fetch"
"""The stage of a whole batch that could not be read: its payload is an object's content, and no event."""

_log = get_logger(__name__)


@dataclass
class Replayed:
    """What a replay did, or would do. `failures` has the first letters of which the fix function failed, and why."""

    matching: int = 0
    """Letters that match, with those that were replayed before, or stay."""
    replayed: int = 0
    finished: int = 0
    """Of `replayed`: how many a replay that was killed had planned."""
    skipped: int = 0
    """Letters that were replayed before."""
    left_by_fix: int = 0
    without_payload: int = 0
    whole_batches: int = 0
    failed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def note_failure(self, letter: StoredLetter, why: str) -> None:
        """Count a letter that could not be fixed, and keep the first ones with their reasons."""
        self.failed += 1
        if len(self.failures) < _MAX_SHOWN_FAILURES:
            self.failures.append((letter.id, why))


class Target:
    """A buffer that letters go into. Raises `InvalidInput` where none is, or where it cannot take each once."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self.url = url_of(store)
        try:
            store.head(path)
        except NotFound as error:
            raise InvalidInput(f"there is no buffer at {self.url}: no manifest {path!r}") from error
        view = BufferQueue(store, path, "consumer").look()
        if view.buffer_id is None or not view.names_groups:
            raise InvalidInput(
                f"{self.url} has a manifest of version {view.format_version}, which does not remember what a writer "
                "has appended: letters could come twice. Upgrade it: penstock manifest upgrade"
            )
        self.id = str(view.buffer_id)
        self._path = path
        self._store = store
        self._config = ProducerConfig(manifest_path=path)
        self.max_event_bytes = self._config.max_batch_bytes - _EVENT_OVERHEAD_BYTES

    def append(self, plan: Plan) -> None:
        """Append a plan's records, unless they are there.

        Raises `InvalidInput` where the buffer has a later plan of this ledger, and `CorruptData` where it has another
        one under this number.
        """
        name = BlockName(plan.writer, plan.number, plan.nonce)
        if BufferQueue(self._store, self._path, "consumer").has(name.as_transaction, ()):
            return  # by a run that was killed before it could note it; or by another at the same time
        appender = BlockAppender(self._store, self._config)
        records = [planned.record() for planned in plan.records]
        pieces = join_to_size([records_to_arrow(records)], self._config.max_batch_bytes)
        appender.append([appender.write(piece) for piece in pieces], name)

    def last_of(self, writer: str) -> int | None:
        """The last transaction of a writer that the buffer remembers; None for none."""
        last = BufferQueue(self._store, self._path, "consumer").look().writers.get(writer)
        return None if last is None else last.transaction


class Replay:
    """One run of a replay. Raises `InvalidInput` for letters that are in the buffer that they would go into."""

    def __init__(self, place: LetterPlace, to: Target, fix: Fix | None = None) -> None:
        if place.buffer_id == to.id:
            raise InvalidInput(
                f"these letters are in {to.url} itself: replay them into the buffer that their events are from"
            )
        self._place = place
        self._to = to
        self._fix = fix
        self._ledger = Ledger(place.notes())
        self._known: set[str] = set()
        self._next = 0

    def run(self, which: Filter, *, dry_run: bool = False) -> Replayed:
        """Replay the letters that match and were not replayed before.

        Raises `InvalidInput` where a replay into another buffer was killed, or runs: that has to be finished first.
        """
        done = Replayed()
        before = self._catch_up(done, dry_run=dry_run)
        gone: NotFound | None = None
        for _ in range(_MAX_SCANS):
            found = Replayed()
            try:
                for batch in self._batches(which, before, found):
                    done.replayed += len(batch) if dry_run else self._replay(batch)
            except NotFound as error:
                # What was replayed is known by now, and all the rest is counted again.
                _log.info("reading the dead letters again, for some of them were moved or removed meanwhile: %s", error)
                gone = error
                continue
            return replace(found, replayed=done.replayed, finished=done.finished)
        raise StorageError(f"the dead letters were moved all the time while they were read: run again ({gone})")

    def _catch_up(self, done: Replayed, *, dry_run: bool) -> set[str]:
        """Learn what was replayed, and finish what a run that was killed had planned. Return what was done before."""
        before: set[str] = set()
        for plan in self._ledger.plans():
            self._known.update(plan.ids)
            self._next = plan.number + 1
            if plan.is_done:
                before.update(plan.ids)
                continue
            self._check_buffer(plan)
            if not dry_run:
                self._finish(plan)
            done.replayed += len(plan.ids)
            done.finished += len(plan.ids)
        return before

    def _batches(self, which: Filter, before: set[str], found: Replayed) -> Iterator[list[tuple[str, Record]]]:
        """The records to append, in batches that fit into a plan."""
        batch: list[tuple[str, Record]] = []
        size = 0
        matches = which.matcher()
        for letter in self._place.letters():
            if not matches(letter):
                continue
            found.matching += 1
            if letter.id in self._known:
                found.skipped += letter.id in before
                continue
            record = self._record(letter, which, found)
            if record is None:
                continue
            batch.append((letter.id, record))
            size += _size(record)
            if len(batch) >= MAX_LETTERS_PER_PLAN or size >= _MAX_BYTES_PER_PLAN:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _record(self, letter: StoredLetter, which: Filter, found: Replayed) -> Record | None:
        """What a letter becomes; None if it stays, and then that is counted."""
        if letter.stage == FETCH and which.stage != FETCH:
            found.whole_batches += 1
            return None
        if self._fix is None and letter.payload is None:
            found.without_payload += 1
            return None
        try:
            record = self._event(letter)
        except (Exception, SystemExit) as error:  # noqa: BLE001  a fix is the user's code, and may raise anything
            found.note_failure(letter, f"{type(error).__name__}: {error}")
            return None
        if record is None:
            found.left_by_fix += 1
        elif _size(record) > self._to.max_event_bytes:
            # Not into a plan: no append could ever finish it, and no letter after it would be sent.
            found.note_failure(letter, f"an event of {_size(record)} bytes is too large for the buffer")
            return None
        return record

    def _event(self, letter: StoredLetter) -> Record | None:
        """The event of a letter, as the fix function has it. Raises what that raises, and where it is no event."""
        fixed: object = letter.payload if self._fix is None else self._fix(letter)
        if fixed is None or isinstance(fixed, Record):
            return fixed
        if not isinstance(fixed, bytes):
            raise TypeError(f"it returned {type(fixed).__name__}, and not bytes, a Record or None")
        return Record(fixed, letter.key, letter.headers, letter.timestamp_ms)

    def _replay(self, batch: list[tuple[str, Record]]) -> int:
        """Plan, append and note a batch; return how many of it this run has replayed."""
        while batch:
            self._check_ledger()
            ids, records = zip(*batch, strict=True)
            plan, is_ours = self._ledger.write(self._next, self._to.id, self._to.url, ids, records)
            self._finish(plan)
            self._known.update(plan.ids)
            self._next = plan.number + 1
            if is_ours:
                return len(batch)
            # Another replay was faster, and has taken some of these, or all.
            batch = [one for one in batch if one[0] not in self._known]
        return 0

    def _finish(self, plan: Plan) -> None:
        if plan.is_done:
            return
        self._check_buffer(plan)
        try:
            self._to.append(plan)
        except (InvalidInput, CorruptData) as error:
            # The buffer has a later transaction of this ledger: then another run has finished this one.
            if self._ledger.read(plan.number).is_done:
                return
            last = self._to.last_of(plan.writer)
            if last is None or last < plan.number:
                raise
            raise self._ledger_is_behind() from error
        self._ledger.finish(plan)

    def _check_ledger(self) -> None:
        """Raise `CorruptData` where the buffer has a plan that is not in the ledger: a new one would get its number."""
        last = self._to.last_of(self._ledger.writer())
        if last is None or last < self._next:
            return
        try:
            self._ledger.read(self._next)  # another run may have written it meanwhile
        except NotFound:
            raise self._ledger_is_behind() from None

    def _ledger_is_behind(self) -> CorruptData:
        return CorruptData(
            f"the replays noted in {self._ledger.url} are fewer than those that {self._to.url} has of them: they were "
            "restored from an older copy, or two copies of them are in use. Nothing is sent now. To go on: penstock "
            f"writers drop {self._to.url} {self._ledger.writer()}; letters whose notes are lost are sent again then"
        )

    def _check_buffer(self, plan: Plan) -> None:
        """Raise `InvalidInput` for a plan that was begun for another buffer."""
        if plan.buffer_id == self._to.id:
            return
        raise InvalidInput(
            f"a replay of {len(plan.ids)} letters into {plan.buffer_url} was begun at {plan.at} and not finished: "
            f"finish it first, with --to {plan.buffer_url}. If that buffer is gone for good, remove "
            f"{self._ledger.place_of(plan)}: its letters count as not replayed then"
        )


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in record.headers or ())
    return len(record.value) + len(record.key or b"") + headers
