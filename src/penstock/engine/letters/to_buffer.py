"""`to_buffer`: a route that sends dead letters into a buffer, and the letters of such a buffer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.buffer import BatchFormat, BufferQueue, FetchHandle, ProducerConfig
from penstock.core import Closing, check_config
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.letters.encoding import letter_of_record, record_of, stored
from penstock.engine.letters.kinds import LetterKind, check_own_place
from penstock.engine.letters.letter import StoredLetter
from penstock.engine.letters.places import each_once, is_local, open_notes
from penstock.engine.transports.buffer_sender import BufferSender
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.records import records_from_arrow
from penstock.storage import ObjectStore, local_path, open_store, url_of

_ENTRIES_PER_READ = 16
_MAX_LOOKS = 5


@dataclass(frozen=True, slots=True)
class LetterBuffer:
    """The letters in a buffer: all that its manifest keeps, whatever its groups have acked."""

    url: str
    options: Mapping[str, str] = field(repr=False)  # they may have credentials
    manifest_path: str

    @property
    def buffer_id(self) -> str | None:
        """The id of the buffer."""
        found = BufferQueue(self._store(), self.manifest_path, "consumer").look().buffer_id
        return None if found is None else str(found)

    def notes(self) -> ObjectStore:
        """The store beside the buffer, or below its URL."""
        return open_notes(self.url, self.options)

    def letters(self) -> Iterator[StoredLetter]:
        """All letters, in the order of the buffer. Claims no epoch, and so fences no consumer.

        Raises `InvalidInput` for an event that is no letter, `NotFound` where data was collected meanwhile,
        `CorruptData` and `StorageError`.
        """
        return each_once(letters_in_buffer(self._store(), self.manifest_path))

    def _store(self) -> ObjectStore:
        return open_store(self.url, **self.options)


def letters_in_buffer(store: ObjectStore, manifest_path: str) -> Iterator[StoredLetter]:
    """The letters in a buffer, as they come. Raises as `LetterBuffer.letters` does."""
    view = BufferQueue(store, manifest_path, "consumer").look()
    handle = FetchHandle(store)
    start = view.first_sequence
    while entries := view.entries(start, start + _ENTRIES_PER_READ):
        for entry in entries:
            for index, record in enumerate(records_from_arrow(handle.fetch(entry).arrow)):
                try:
                    yield letter_of_record(record)
                except CorruptData as error:
                    raise InvalidInput(
                        f"the buffer {url_of(store)} is none of dead letters: event {index} of batch {entry.sequence}: "
                        f"{error}. Give letters a buffer of their own"
                    ) from error
        start = entries[-1].sequence + 1


class BufferRoute(Closing):
    """What `to_buffer` returns: a route for dead letters. Safe to share between threads; `close` ends its producer."""

    _instead_in_child = "call to_buffer here"

    def __init__(
        self,
        where: str | os.PathLike[str] | ObjectStore,
        config: ProducerConfig | None,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        config = ProducerConfig() if config is None else config
        check_config(config, ProducerConfig)
        store = open_store(where)
        self._url = url_of(store)
        self._clock = clock
        if isinstance(where, str | os.PathLike) and is_local(os.fspath(where)):
            check_own_place(local_path(where), LetterKind.BUFFER)
        _check_format(store, config)
        _check_first(store, config)
        self._sender = BufferSender(store, config)

    def __repr__(self) -> str:
        return f"to_buffer({self._url!r})"

    def __call__(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters, and return when they are durable and in the manifest.

        Raises what went wrong: then some of them may be there.
        """
        self._check_process()
        self._check_open()
        self._sender.send([record_of(letter) for letter in stored(letters, self._clock)])

    def close(self) -> None:
        """Close the producer. A second `close` does nothing."""
        if self._is_in_child:
            return  # it is the parent's
        self._is_closed = True
        self._sender.close()


def to_buffer(
    where: str | os.PathLike[str] | ObjectStore,
    config: ProducerConfig | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> BufferRoute:
    """A route that sends dead letters into a buffer of their own, with `config`: for `DlqPolicy.route`.

    It returns when they are durable, and in the buffer. A letter is an event with the payload, key, headers and
    timestamp of its own, and the rest in one more header, `penstock-dead-letter`. `penstock dlq` lists, shows and
    replays them. Whether it is closed or not, nothing is lost.

    Raises `InvalidInput` for a buffer of other events, and for one that is written without headers (`opendata`).

    >>> from penstock.engine import BatchEngine, DlqPolicy
    >>> with to_buffer("memory://doctest-letters") as letters:
    ...     engine = BatchEngine(dlq=DlqPolicy.route(letters))
    """
    return BufferRoute(where, config, clock=clock)


def _check_format(store: ObjectStore, config: ProducerConfig) -> None:
    queue = BufferQueue.of(store, config, "producer", clock=time.time)
    queue.look()
    if config.batch_format(queue.batch_format) is BatchFormat.OPENDATA:
        raise InvalidInput(
            f"data in {url_of(store)} is written in the format opendata, which has no headers, and a dead letter needs "
            'them: give ProducerConfig(format="arrow"), or upgrade the manifest: penstock manifest upgrade'
        )


def _check_first(store: ObjectStore, config: ProducerConfig) -> None:
    """Raise `InvalidInput` for a buffer of other events."""
    for _ in range(_MAX_LOOKS):
        try:
            next(letters_in_buffer(store, config.manifest_path), None)
        except NotFound:
            continue  # it was collected since the manifest was read
        return
