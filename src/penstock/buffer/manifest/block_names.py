"""What an entry of a named block carries as metadata, and how a block that is repeated is recognised by it.

A manifest of version 1 remembers no writers: the payloads of the entries still queued are all that it shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from penstock.buffer.descriptors import BatchDescriptor
from penstock.buffer.manifest.state import Transaction
from penstock.errors import CorruptData, InvalidInput

MAX_TRANSACTION = (1 << 63) - 1


def block_payload(by: Transaction) -> bytes:
    """What every entry of a block carries in its metadata.

    >>> block_payload(Transaction("nightly", 7))
    b'{"writer":"nightly","transaction":7}'
    """
    fields: dict[str, object] = {"writer": by.writer, "transaction": by.number}
    if by.end is not None:
        fields["end"] = by.end
    return json.dumps(fields, separators=(",", ":")).encode()


def check_same_block(by: Transaction, payload: bytes) -> None:
    """Raises `CorruptData` if a queued block carries the name of this one and another end."""
    if by.end is not None and payload.startswith(_beginning(by)) and payload != block_payload(by):
        raise CorruptData(
            f"a block is queued as {payload.decode(errors='replace')}, and the one to be appended is "
            f"{block_payload(by).decode()}: the checkpoint has lost what it had planned, and this one is not "
            "appended; work off or step over the queued one, and give the query a new checkpoint"
        )


class QueuedBlock:
    """Looks for a block among the entries that are queued: by its name on any of them, or by a location."""

    def __init__(self, by: Transaction | None, locations: Iterable[str]) -> None:
        self._by = by
        self._locations = set(locations)
        self._beginning = b"" if by is None else _beginning(by)
        before = re.escape(self._beginning.rpartition(b":")[0])
        self._numbers = None if by is None else re.compile(before + rb":(\d{1,19})[,}]")  # of the writer's blocks

    def may_be_in(self, data: bytes) -> bool:
        """Whether the bytes of a manifest have a trace of it. To decode all entries takes long where there are many."""
        named = [self._beginning] if self._beginning else []
        if any(trace in data for trace in [location.encode() for location in self._locations] + named):
            return True
        return self._numbers is not None and any(map(self._is_later, self._numbers.finditer(data)))

    def is_among(self, entries: list[BatchDescriptor]) -> bool:
        """Whether it is there. Raises `CorruptData` if another block is, under its name.

        Raises `InvalidInput` if it is not, and a later one of its writer is: only the last one is ever repeated.
        """
        for entry in entries:
            if entry.location in self._locations or any(self._is_named(item.payload) for item in entry.metadata):
                return True
        if self._by is not None and self._numbers is not None:
            names = (self._numbers.match(item.payload) for entry in entries for item in entry.metadata)
            later = [int(found[1]) for found in names if found is not None and self._is_later(found)]
            if later:
                raise out_of_order(self._by, max(later), "this manifest of version 1")
        return False

    def _is_later(self, found: re.Match[bytes]) -> bool:
        return self._by is not None and int(found[1]) > self._by.number

    def _is_named(self, payload: bytes) -> bool:
        if self._by is None or not payload.startswith((self._beginning + b",", self._beginning + b"}")):
            return False
        check_same_block(self._by, payload)
        return True


def out_of_order(by: Transaction, last: int, where: str) -> InvalidInput:
    """What is raised for a transaction that is lower than its writer's last."""
    return InvalidInput(
        f"the writer {by.writer!r} comes with transaction {by.number}, and {last} is its last one in {where}. It may "
        "never have been appended, and is not appended now: numbers only rise, and only the last one is repeated. Was "
        "a checkpoint restored from a copy, or does another process write under this name? Go on with a new checkpoint "
        "or name; `penstock writers drop` forgets what the writer has done"
    )


def not_following(by: Transaction, last: int, where: str) -> InvalidInput:
    """What is raised for a transaction whose writer did not know of the last one under its name."""
    return InvalidInput(
        f"the writer {by.writer!r} comes with transaction {by.number} after {by.follows}, and {last} is its last one "
        f"in {where}: another process writes under this name, and nothing is appended; run one at a time"
    )


def _beginning(by: Transaction) -> bytes:
    """How the payloads of all blocks begin that have this name, whatever their end: all but the last byte."""
    return block_payload(Transaction(by.writer, by.number))[:-1]
