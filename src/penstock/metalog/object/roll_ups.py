"""Roll-ups: a thousand objects of a chain copied into a few, so that a new reader makes few requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from penstock.core import get_logger
from penstock.errors import AlreadyExists
from penstock.metalog.object.chain import Chain
from penstock.metalog.object.format import LogObject, encode

_log = get_logger(__name__)


class RollUps:
    """Writes the roll-ups of a log in a thread of its own, which starts with the first."""

    def __init__(self) -> None:
        self._due = queue.SimpleQueue[Chain | None]()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def wrote(self, chain: Chain, one: LogObject) -> None:
        """Have a roll-up written, if this was the last object of a thousand."""
        if not _is_last(chain, one):
            return
        with self._lock:
            if self._stop.is_set():
                return
            self._due.put(chain)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-metalog-rollup", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop. What is not copied yet is left to the writer of the next thousand."""
        with self._lock:
            self._stop.set()
            self._due.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()

    def roll_up(self, chain: Chain) -> None:
        """Copy every whole thousand that is not copied yet, from where the last roll-up ends."""
        settings = chain.settings
        start = 0
        for one in chain.roll_ups():
            if one.first <= start:
                start = max(start, one.end)
        # How many objects are in whole thousands is known first: they need not all be in memory together.
        end = chain.known_end or chain.find_end()
        whole = end.objects // settings.roll_up_every * settings.roll_up_every
        part, size = list[LogObject](), 0
        for found in self._walk(chain, start):
            if found.number >= whole:
                return
            if part and size + found.size > settings.max_roll_up_bytes:
                self._write(chain, part)
                part, size = [], 0
            part.append(found)
            size += found.size
            if _is_last(chain, found):
                self._write(chain, part)
                part, size = [], 0

    def _run(self) -> None:
        while not self._stop.is_set():
            chain = self._due.get()
            if chain is None:
                return
            try:
                self.roll_up(chain)
            except Exception as error:  # noqa: BLE001  any error of a store: the writer of the next thousand tries again
                _log.warning("no roll-up of %s was written: %s", chain.where(str(chain.partition)), error)

    def _walk(self, chain: Chain, start: int) -> Iterator[LogObject]:
        while not self._stop.is_set() and (found := chain.read(start)) is not None:
            yield found
            start = found.end

    def _write(self, chain: Chain, part: Sequence[LogObject]) -> None:
        first, count = part[0].first, part[-1].end - part[0].first
        data = b"".join(encode(one.first, one.number, one.nonce, one.payloads) for one in part)
        # Another process that writes it writes the same bytes: they follow from the objects alone.
        with suppress(AlreadyExists):
            chain.store.put_if_absent(f"{chain.partition}/rollups/{first:020d}-{count}", data)


def _is_last(chain: Chain, one: LogObject) -> bool:
    """Whether an object is the last of a thousand."""
    return (one.number + 1) % chain.settings.roll_up_every == 0
