"""Publishing to one partition of an object log: whoever comes while an object is being written shares the next one."""

from __future__ import annotations

import copy
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock import metrics
from penstock.core import get_logger
from penstock.errors import AlreadyExists, Closed, InvalidInput, OutcomeUnknown, StorageError
from penstock.metalog.object.chain import Chain, PartitionEnd
from penstock.metalog.object.format import MAX_PAYLOAD_BYTES, LogObject, encode, size_of

_MOST_BYTES = (1 << 20) - 64  # of the payloads that share an object; its header has the rest of a mebibyte
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 1.0

_T = TypeVar("_T")

_INTERRUPTED = OutcomeUnknown("the thread that wrote for others was interrupted: it may be in the log, or not")

_log = get_logger(__name__)


class _Waiting:
    """A payload whose publisher waits at a gate."""

    __slots__ = ("error", "gate", "is_over", "offset", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.gate = threading.Lock()
        self.gate.acquire()
        self.offset = -1
        self.error: Exception | None = None
        self.is_over = False

    def end(self, offset: int, error: Exception | None) -> None:
        self.offset, self.error, self.is_over = offset, error, True
        self.open()

    def open(self) -> None:
        with suppress(RuntimeError):  # it is open
            self.gate.release()


class PartitionWriter:
    """Appends to a chain, with one object under way at a time; there is no thread, the publishers take turns.

    `wrote` is called after each object that was written.
    """

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
        self._lock = threading.Lock()
        self._line = deque[_Waiting]()
        self._leader: _Waiting | None = None
        self._group: list[_Waiting] = []  # those whose payloads the leader writes
        self._is_closed = False
        self._idle = threading.Condition(self._lock)
        self._last: LogObject | None = None
        self._hinted = -1
        self._publishes = metrics.metalog_publishes.labels(label)
        self._objects = metrics.metalog_objects.labels(label)
        self._lost = metrics.metalog_lost_races.labels(label)

    def publish(self, payload: bytes) -> int:
        """Append a payload, and return its offset when it is in the log."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise InvalidInput(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
        ours = _Waiting(payload)
        try:
            with self._lock:
                if self._is_closed:
                    raise Closed("this metadata log is closed")
                self._line.append(ours)
                if self._leader is None:
                    self._leader = ours
                    ours.open()
            ours.gate.acquire()
            if not ours.is_over:
                self._lead()
        finally:
            # An interrupt may come here too, and a leader that does not leave would hold up everybody for ever. To
            # leave twice does no more than once.
            try:
                self._leave(ours)
            finally:
                self._leave(ours)
        if ours.error is not None:
            raise ours.error
        return ours.offset

    def close(self) -> None:
        """Let nobody in any more, wait for those who are, and leave a hint."""
        with self._idle:
            self._is_closed = True
            while self._leader is not None:
                self._idle.wait()
        if self._last is not None and self._last.first > self._hinted:
            self._chain.hint_further(self._last.first)

    def _lead(self) -> None:
        """Write one object, with what the first in line want to say."""
        with self._lock:
            self._take()
        group = self._group
        first = -1
        error: Exception = _INTERRUPTED
        try:
            first = self.append([one.payload for one in group])
        except Exception as failure:  # noqa: BLE001  every publisher of the group raises it
            error = failure
        finally:
            for place, one in enumerate(group):
                one.end(first + place, None if first >= 0 else _own(error))
        self._group = []
        if first >= 0 and self._last is not None:
            self._publishes.inc(len(group))
            if (self._last.number + 1) % self._chain.settings.hint_every == 0:
                self._chain.hint(self._last.first)
                self._hinted = self._last.first
            self._wrote(self._last)

    def _take(self) -> None:
        """Take those out of the line who share the next object. An interrupt in here leaves nobody in neither."""
        self._group, size = [], 0
        while self._line and (not self._group or size + size_of(self._line[0].payload) <= _MOST_BYTES):
            size += size_of(self._line[0].payload)
            self._group.append(self._line[0])
            self._line.popleft()

    def _leave(self, ours: _Waiting) -> None:
        """Let a publisher go. Should it have been the leader, the first in line is the next one."""
        with self._lock:
            if not ours.is_over and ours in self._line:
                self._line.remove(ours)  # it was interrupted before anybody wrote it
            if self._leader is ours:
                self._release()
                self._leader = self._line[0] if self._line else None
            if self._leader is not None:
                self._leader.open()
            else:
                self._idle.notify_all()

    def _release(self) -> None:
        """Let those go for whom the leader wrote. If it was interrupted, some may not have been told how it ended."""
        if self._group and self._line and self._line[0] is self._group[-1]:
            self._line.popleft()
        for one in self._group:
            if not one.is_over:
                one.end(-1, _own(_INTERRUPTED))
            one.open()
        self._group = []

    def append(self, payloads: Sequence[bytes]) -> int:
        """Create the object at the chain's end, wherever that turns out to be; return its first offset."""
        pauses = self._pauses()
        end = self._chain.known_end or self._patiently(self._chain.find_end, pauses)
        losses = 0
        while True:
            nonce = self._nonce()
            data = encode(end.offset, end.objects, nonce, payloads)
            theirs = self._create(end, nonce, data, pauses)
            if theirs is None:
                self._last = LogObject(end.offset, end.objects, nonce, payloads, len(data))
                self._chain.note(self._last)
                self._objects.inc()
                return end.offset
            self._lost.inc()
            losses += 1
            end = PartitionEnd.after(theirs)
            if losses % 2 == 0:  # so many others write, or have written: to read on is cheaper than to try each name
                end = self._patiently(self._chain.find_end, pauses)

    def _create(self, end: PartitionEnd, nonce: bytes, data: bytes, pauses: Iterator[None]) -> LogObject | None:
        """Create an object under this name, and no other: None when it is there, or somebody else's that is.

        Until an object was seen there every try has the same bytes: one whose reply was lost may still arrive.
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
            found = self._patiently(lambda: self._chain.fetch(end.offset), pauses, OutcomeUnknown)
            if found is not None:
                return None if found.nonce == nonce else found
            self._pause(pauses, OutcomeUnknown(f"it may be in the log, or not, or appear later ({problem})"))

    def _patiently(
        self, call: Callable[[], _T], pauses: Iterator[None], failure: type[StorageError] | None = None
    ) -> _T:
        """Call the store until it answers, or it is time to give up: with its error, or the failure given."""
        while True:
            try:
                return call()
            except StorageError as error:
                _log.warning("%s: %s; trying again", self._chain.where(str(self._chain.partition)), error)
                self._pause(pauses, error if failure is None else failure(str(error)))

    def _pause(self, pauses: Iterator[None], error: StorageError) -> None:
        for _ in pauses:
            return
        where = self._chain.where(str(self._chain.partition))
        raise type(error)(f"{where}: gave up after {self._give_up_after:g} s: {error}") from error

    def _pauses(self) -> Iterator[None]:
        """Wait a random while, up to twice as long each time, until it is time to give up."""
        until = self._clock() + self._give_up_after
        longest = _FIRST_PAUSE
        while self._clock() < until:
            self._sleep(longest * random.random())
            longest = min(longest * 2, _LONGEST_PAUSE)
            yield


def _own(error: Exception) -> Exception:
    """The same error, for another thread to raise with its own traceback."""
    try:
        mine = copy.copy(error)
    except Exception:  # noqa: BLE001  one whose constructor takes something else than its `args`
        return error
    mine.__cause__ = error.__cause__
    return mine
