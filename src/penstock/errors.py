"""Every exception Penstock raises, in one tree.

```text
PenstockError
├── InvalidInput                 a value that cannot be right; also a ValueError
│   └── PartitionOutOfRange      a metadata partition the log does not have
├── Closed                       used after close()
├── BackpressureTimeout          no free space in time, nothing was accepted; also a TimeoutError
├── StorageError                 an object store, or a queue's disk, did not do what was asked
│   ├── NotFound                 there is no such object
│   ├── AlreadyExists            put_if_absent met an object
│   ├── Conflict                 a lost compare-and-set
│   └── OutcomeUnknown           it may have happened, and may still happen late
├── CorruptData                  bytes that are not what their format says
│   └── CorruptEvent             a key or a value of a durable queue that cannot be read
├── Fenced                       a newer consumer has taken over
├── OutOfOrderAck                an ack that would step over an entry
├── IdOverflow                   a queue has used its last event id
├── UnknownEvent                 an event id that is not on disk
├── EngineError                  a block stopped, and nothing of it was committed
│   ├── ReceiveFailed            in the receiver
│   ├── ParseFailed              in parsing, with FAIL_BATCH
│   ├── ProcessFailed            in the process function
│   ├── DeadLettersUnrouted      dead letters, and no route for them
│   ├── DeadLetterRouteFailed    in the dead letters' route
│   ├── SinkFailed               in the sink
│   └── CommitFailed             in the commit
├── RouteFailed                  some routes of a RoutedSink: the cause of a SinkFailed
├── NotReady                     a view that has not caught up yet; try again
└── InvalidTransition            a state that may not follow the one before
```

After `Conflict`, `AlreadyExists` or `OutcomeUnknown` a caller re-reads and decides by evidence that no other writer
could have written: a lost compare-and-set may be one's own earlier try.

What a caller would act on is an attribute too, beside the text: None where the place that raised does not know it.
Attributes are given by keyword, and are kept by `copy` and `pickle`.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    r"""The root of the tree: `except PenstockError` catches whatever Penstock raises.

    Its text is one line. Text of others in it (names, locations, answers of a store) moves no cursor and begins no
    line, wherever it is printed: what a terminal or a log would act on is escaped. `args` has it as it was.

    >>> str(PenstockError("the group a\n\x1b[2J"))
    'the group a\\n\\x1b[2J'
    """

    def __str__(self) -> str:
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class InvalidInput(PenstockError, ValueError):
    """A value that cannot be right. The message names the field, the value and what is allowed."""


class PartitionOutOfRange(InvalidInput):
    """A metadata partition that the log does not have.

    >>> str(PartitionOutOfRange(7, 4))
    'partition 7 is out of range: the log has 4 partitions, 0 to 3'
    """

    def __init__(self, partition: int, count: int) -> None:
        super().__init__(partition, count)
        self.partition = partition
        self.count = count

    def __str__(self) -> str:
        noun = "partition" if self.count == 1 else "partitions"
        return f"partition {self.partition} is out of range: the log has {self.count} {noun}, 0 to {self.count - 1}"


class Closed(PenstockError):
    """Something was used after its `close()`."""


class BackpressureTimeout(PenstockError, TimeoutError):
    """There was no free space within the timeout, and nothing was accepted. `timeout` is in seconds."""

    def __init__(self, *args: object, timeout: float | None = None) -> None:
        super().__init__(*args)
        self.timeout = timeout


class StorageError(PenstockError):
    """An object store, or the disk of a queue, did not do what was asked."""


class NotFound(StorageError):
    """There is no object at that path.

    `location` is the object's path in its store; `sequence` is that of the entry that names it, if one does.
    """

    def __init__(self, *args: object, location: str | None = None, sequence: int | None = None) -> None:
        super().__init__(*args)
        self.location = location
        self.sequence = sequence


class AlreadyExists(StorageError):
    """`put_if_absent` met an object, possibly that of the caller's own earlier try."""


class Conflict(StorageError):
    """A lost compare-and-set: the object is not at that version any more, possibly by one's own earlier try."""


class OutcomeUnknown(StorageError):
    """A write that may have happened, and may still happen late. Re-read, and decide by evidence."""


class CorruptData(PenstockError):
    """Bytes that are not what their format says."""


class CorruptEvent(CorruptData):
    """A key or a value in a durable queue that cannot be read.

    `id` is that of the event; for a key that is no id it is None, and `key` has its bytes.

    >>> CorruptEvent("event 7 cannot be decoded", id=7).id
    7
    """

    def __init__(self, *args: object, id: int | None = None, key: bytes | None = None) -> None:  # noqa: A002
        super().__init__(*args)
        self.id = id
        self.key = key


class Fenced(PenstockError):
    """A newer consumer has taken over; this one may not go on.

    `epoch` is the one that this consumer had, `current_epoch` that of the newer one (None: its group or its buffer is
    gone), and `group` the group that both are of.

    >>> Fenced("a newer consumer has taken over", epoch=3, current_epoch=4).epoch
    3
    """

    def __init__(
        self, *args: object, epoch: int | None = None, current_epoch: int | None = None, group: str | None = None
    ) -> None:
        super().__init__(*args)
        self.epoch = epoch
        self.current_epoch = current_epoch
        self.group = group


class OutOfOrderAck(PenstockError):
    """An ack that would step over an entry, or repeat one.

    `sequence` is the one that was to be acked, and `expected` the one that is due; None where nothing was handed out.
    """

    def __init__(self, *args: object, sequence: int | None = None, expected: int | None = None) -> None:
        super().__init__(*args)
        self.sequence = sequence
        self.expected = expected


class IdOverflow(PenstockError):
    """A queue has used its last event id."""


class UnknownEvent(PenstockError):
    """An event id that is not on disk: `id`."""

    def __init__(self, *args: object, id: int | None = None) -> None:  # noqa: A002  the name of `DurableEvent.id`
        super().__init__(*args)
        self.id = id


class EngineError(PenstockError):
    """A block of work stopped, and nothing of it was committed. The cause is chained to it.

    `place` is where: `receive`, `parse`, `process`, `dead letters`, `sink` or `commit`; None where it is no such place.
    """

    place: ClassVar[str | None] = None


class ReceiveFailed(EngineError):
    """The receiver failed."""

    place = "receive"


class ParseFailed(EngineError):
    """A record could not be parsed, and the configuration says that this fails the block."""

    place = "parse"


class ProcessFailed(EngineError):
    """The process function failed."""

    place = "process"


class DeadLettersUnrouted(EngineError):
    """There were dead letters, and no route for them."""

    place = "dead letters"


class DeadLetterRouteFailed(EngineError):
    """The dead letters' route failed."""

    place = "dead letters"


class SinkFailed(EngineError):
    """The sink failed. Where it is a `RoutedSink`, the cause is a `RouteFailed`."""

    place = "sink"


class RouteFailed(PenstockError):
    """One or several routes of a `RoutedSink` failed. `routes` are their names; the first error is its cause."""

    def __init__(self, *args: object, routes: tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        self.routes = tuple(routes)


class CommitFailed(EngineError):
    """The commit failed."""

    place = "commit"


class NotReady(PenstockError):
    """A view that has not caught up yet. Trying again later may succeed."""


class InvalidTransition(PenstockError):
    """A state that may not follow the one before it."""
