"""The ledger of replays, beside a place of dead letters: which letters went, or are going, into which buffer.

```text
ledger          the id of this ledger, by which buffers know it as a writer
plans/<number>  letters that go together: first with their records, then, when they are appended, only their ids
```

A plan is put if it is absent, and the next one only after it is done. So its number is a transaction of the ledger's
writer: a buffer takes it once.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from penstock.core import Backoff, call_with_retries
from penstock.errors import AlreadyExists, Conflict, CorruptData, NotFound, OutcomeUnknown
from penstock.records import Headers, Record
from penstock.storage import ObjectStore, url_of

_LEDGER = "ledger"
_PLANS = "plans"
_TRIES = 5


class PlannedRecord(msgspec.Struct, frozen=True, array_like=True):
    """An event that is to be appended."""

    value: bytes
    key: bytes | None = None
    headers: Headers | None = None
    timestamp_ms: int | None = None

    @classmethod
    def of(cls, record: Record) -> PlannedRecord:
        """A record, as a plan keeps it."""
        # Of these very types: a fix function may return subclasses, which have no form in MessagePack.
        headers = None if record.headers is None else tuple((str(name), bytes(value)) for name, value in record.headers)
        key = None if record.key is None else bytes(record.key)
        return cls(bytes(record.value), key, headers, record.timestamp_ms)

    def record(self) -> Record:
        """The record."""
        return Record(self.value, self.key, self.headers, self.timestamp_ms)


class Plan(msgspec.Struct, frozen=True):
    """Letters that go into a buffer together."""

    number: int
    nonce: str
    writer: str
    buffer_id: str
    buffer_url: str
    at: str
    ids: tuple[str, ...]
    records: tuple[PlannedRecord, ...] = ()
    is_done: bool = False


class Ledger:
    """The replays of one place's letters. Every change is one conditional put: two processes may use it at once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return url_of(self._store)

    def writer(self) -> str:
        """The name by which buffers know this ledger, which is created if it is not there."""
        try:
            return self._name()
        except NotFound:
            with suppress(AlreadyExists, Conflict, OutcomeUnknown):  # what is there counts
                self._store.put_if_absent(_LEDGER, uuid.uuid4().hex.encode())
            return self._name()

    def _name(self) -> str:
        name = self._store.get(_LEDGER).data.decode("ascii", "replace")
        if not name.isalnum():
            raise CorruptData(f"{_LEDGER} in {self._store.url} is not the id of a ledger")
        return f"dlq-{name}"

    def plans(self) -> list[Plan]:
        """All plans, in their order."""
        paths = sorted(found.path for found in self._store.list_objects(_PLANS))
        return [self._read(path) for path in paths]

    def place_of(self, plan: Plan) -> str:
        """Where a plan is, for people."""
        return f"{self.url}/{_path(plan.number)}"

    def read(self, number: int) -> Plan:
        """A plan that is there."""
        return self._read(_path(number))

    def write(
        self, number: int, buffer_id: str, buffer_url: str, ids: Sequence[str], records: Sequence[Record]
    ) -> tuple[Plan, bool]:
        """Write a plan if there is none of its number; return the one that is there, and whether it is this one."""
        plan = Plan(
            number,
            uuid.uuid4().hex,
            self.writer(),
            buffer_id,
            buffer_url,
            datetime.now(UTC).isoformat(timespec="seconds"),
            tuple(ids),
            tuple(map(PlannedRecord.of, records)),
        )

        def put() -> Plan:
            try:
                self._store.put_if_absent(_path(number), msgspec.msgpack.encode(plan))
            except (AlreadyExists, Conflict, OutcomeUnknown) as error:
                try:
                    return self.read(number)
                except NotFound:
                    raise OutcomeUnknown(f"the plan {number} may be in {self._store.url}, and may be later") from error
            return plan

        found = call_with_retries(put, Backoff(0.05, 1.0), tries=_TRIES, on=OutcomeUnknown)
        return found, found.nonce == plan.nonce

    def finish(self, plan: Plan) -> None:
        """Note that a plan's records are in its buffer. They need not be kept any more; its ids are, for ever."""
        done = msgspec.structs.replace(plan, records=(), is_done=True)
        self._store.put(_path(plan.number), msgspec.msgpack.encode(done))

    def _read(self, path: str) -> Plan:
        try:
            return msgspec.msgpack.decode(self._store.get(path).data, type=Plan)
        except msgspec.MsgspecError as error:
            raise CorruptData(f"{path} in {self._store.url} is not the plan of a replay: {error}") from error


def _path(number: int) -> str:
    return f"{_PLANS}/{number:012d}"
