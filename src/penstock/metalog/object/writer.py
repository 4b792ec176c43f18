"""Publishing to one partition of an object log: calls that come while an object is written share the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from penstock import metrics
from penstock.core import Backoff, GroupCommit, Work, call_with_retries, get_logger
from penstock.errors import AlreadyExists, InvalidInput, OutcomeUnknown, StorageError
from penstock.metalog.object.chain import Chain, PartitionEnd
from penstock.metalog.object.format import MAX_PAYLOAD_BYTES, LogObject, encode, size_of

_MAX_PAYLOAD_BYTES_PER_OBJECT = (1 << 20) - 64  # where several share it; its header has the rest of a mebibyte
_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0

_log = get_logger(__name__)


class Publication(Work):
    """A payload, and its offset when it is in the log."""

    __slots__ = ("offset", "payload")

    def __init__(self, payload: bytes) -> None:
        super().__init__(size_of(payload))
        self.payload = payload
        self.offset = -1


def _checked(payload: bytes) -> Publication:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
    return Publication(payload)


class PartitionWriter:
    """Appends to a chain, by one call at a time. `wrote` is called after each object that was written."""

    def __init__(
        self,
        chain: Chain,
        label: str,
        wrote: Callable[[LogObject], object],
        *,
        give_up_after: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        nonce: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        self._chain = chain
        self._wrote = wrote
        self._give_up_after = give_up_after
        self._clock = clock
        self._sleep = sleep
        self._nonce = nonce
        self._commits = GroupCommit(
            self._write,
            "this metadata log",
            max_bytes=_MAX_PAYLOAD_BYTES_PER_OBJECT,
            after_write=self._after_write,
        )
        self._last: LogObject | None = None
        self._hinted = -1
        self._publishes = metrics.metalog_publishes.labels(label)
        self._objects = metrics.metalog_objects.labels(label)
        self._lost = metrics.metalog_lost_races.labels(label)

    def publish(self, payload: bytes) -> int:
        """Append a payload, and return its offset when it is in the log."""
        publication = _checked(payload)
        self._commits.commit(publication)
        return publication.offset

    async def publish_async(self, payload: bytes) -> int:
        """Do what `publish` does, for a coroutine. Cancelled before its write begins, it is not published."""
        from penstock.core import wait_for  # callers that do not await need not load asyncio

        publication = _checked(payload)
        await wait_for(self._commits.commit_later(publication))
        return publication.offset

    def close(self) -> None:
        """Accept no more calls, wait for those under way, and write a hint."""
        self._commits.close()
        if self._last is not None and self._last.first > self._hinted:
            self._chain.hint_further(self._last.first)

    def _write(self, group: Sequence[Publication]) -> None:
        """Write one object with the payloads of a group."""
        first = self.append([one.payload for one in group])
        for offset, one in enumerate(group, first):
            one.offset = offset
        self._publishes.inc(len(group))

    def _after_write(self) -> None:
        """Move the hint on, now and then, and let readers of this process know."""
        if self._last is None:
            return
        if (self._last.number + 1) % self._chain.settings.hint_every == 0:
            self._chain.hint(self._last.first)
            self._hinted = self._last.first
        self._wrote(self._last)

    def append(self, payloads: Sequence[bytes]) -> int:
        """Create the object at the chain's end, which may move while it is tried; return its first offset."""
        backoff = Backoff(
            _FIRST_WAIT_SECONDS,
            _LONGEST_WAIT_SECONDS,
            give_up_after=self._give_up_after,
            sleep=self._sleep,
            clock=self._clock,
        )
        end = self._chain.known_end or self._find_end(backoff)
        losses = 0
        while True:
            nonce = self._nonce()
            data = encode(end.offset, end.objects, nonce, payloads)
            found = self._create(end, nonce, data, backoff)
            if found is None:
                self._last = LogObject(end.offset, end.objects, nonce, payloads, len(data))
                self._chain.note(self._last)
                self._objects.inc()
                return end.offset
            self._lost.inc()
            losses += 1
            end = PartitionEnd.after(found)
            if losses % 2 == 0:  # many others write, or have written: reading on is cheaper than trying each name
                end = self._find_end(backoff)

    def _find_end(self, backoff: Backoff) -> PartitionEnd:
        """Where the chain ends. Raises the store's error when it is time to give up: nothing was published."""
        try:
            return call_with_retries(self._chain.find_end, backoff, warn=self._warn)
        except StorageError as error:
            raise type(error)(self._gave_up(error)) from error

    def _create(self, end: PartitionEnd, nonce: bytes, data: bytes, backoff: Backoff) -> LogObject | None:
        """Create an object under the name of this end. None: it is there; else the object of another that is there.

        Until an object was seen there, every try has the same bytes: one whose reply was lost may still arrive.
        """
        path = self._chain.path(end.offset)
        while True:
            try:
                self._chain.store.put_if_absent(path, data)
            except StorageError as error:
                problem = str(error)
                if not isinstance(error, AlreadyExists):
                    _log.warning("%s: %s; looking what is there", self._chain.where(path), error)
            else:
                return None
            try:
                found = call_with_retries(lambda: self._chain.fetch(end.offset), backoff, warn=self._warn)
            except StorageError as error:
                raise OutcomeUnknown(self._gave_up(error)) from error
            if found is not None:
                return None if found.nonce == nonce else found
            if not backoff.wait():
                raise OutcomeUnknown(self._gave_up(f"it may be in the log, or not, or appear later ({problem})"))

    def _warn(self, error: Exception) -> None:
        _log.warning("%s: %s; trying again", self._where, error)

    def _gave_up(self, problem: object) -> str:
        return f"{self._where}: gave up after {self._give_up_after:g} s: {problem}"

    @property
    def _where(self) -> str:
        return self._chain.where(str(self._chain.partition))
