"""Roll-ups: every thousand objects of a chain are copied into a few, so that a new reader makes few requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from penstock.core import get_logger
from penstock.errors import AlreadyExists
from penstock.metalog.object.chain import ROLL_UP_EVERY, Chain
from penstock.metalog.object.format import LogObject, encode

_MOST_BYTES = 16 << 20  # of one: a reader has it in memory whole

_log = get_logger(__name__)


class RollUps:
    """Makes the roll-ups of a log in a thread of its own, which starts with the first."""

    def __init__(self) -> None:
        self._asked = queue.SimpleQueue[Chain | None]()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def wrote(self, chain: Chain, one: LogObject) -> None:
        """Make one, if this was the last object of a thousand."""
        if one.number % ROLL_UP_EVERY != ROLL_UP_EVERY - 1:
            return
        with self._lock:
            if self._stop.is_set():
                return
            self._asked.put(chain)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-metalog-rollup", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop. What was not copied is left to the writer of the next thousand."""
        with self._lock:
            self._stop.set()
            self._asked.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            chain = self._asked.get()
            if chain is None:
                return
            try:
                self.roll_up(chain)
            except Exception as error:  # noqa: BLE001  whatever a store raises: the next thousand's writer makes it
                _log.warning("no roll-up of %s was made: %s", chain.where(str(chain.partition)), error)

    def roll_up(self, chain: Chain) -> None:
        """Copy every whole thousand that is not copied yet, from where the last roll-up ends."""
        start = 0
        for one in chain.roll_ups():
            if one.first <= start:
                start = max(start, one.end)
        # Which thousands are whole is known before: their objects need not all be in memory together.
        whole = (chain.known_end or chain.find_end()).objects // ROLL_UP_EVERY * ROLL_UP_EVERY
        part, size = list[LogObject](), 0
        for found in self._walk(chain, start):
            if found.number >= whole:
                return
            if part and size + found.size > _MOST_BYTES:
                self._write(chain, part)
                part, size = [], 0
            part.append(found)
            size += found.size
            if found.number % ROLL_UP_EVERY == ROLL_UP_EVERY - 1:
                self._write(chain, part)
                part, size = [], 0

    def _walk(self, chain: Chain, start: int) -> Iterator[LogObject]:
        while not self._stop.is_set() and (found := chain.read(start)) is not None:
            yield found
            start = found.end

    def _write(self, chain: Chain, part: Sequence[LogObject]) -> None:
        first, count = part[0].first, part[-1].end - part[0].first
        data = b"".join(encode(one.first, one.number, one.nonce, one.payloads) for one in part)
        # Whoever else makes it writes the same bytes: they follow from the objects alone.
        with suppress(AlreadyExists):
            chain.store.put_if_absent(f"{chain.partition}/rollups/{first:020d}-{count}", data)
