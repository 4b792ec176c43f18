"""`FaultyStore`: any store, with faults injected from a seed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage.object_store import Data, DeleteResult, Object, ObjectMeta, ObjectStore, as_data
from penstock.storage.paths import check_path, check_paths
from penstock.testing.faults import DEFAULT_RATES, Dice, Fault, Planned

ThirdParty = Callable[[ObjectStore, str], object]
Write = Callable[[], str]

_LATEST = 5  # a late write takes effect before the fifth call after it, at the latest
_LONGEST_JUMP = timedelta(days=1)


def rewrite(store: ObjectStore, path: str) -> None:
    """The plainest third party: replaces an object by itself, and leaves an absent one absent."""
    with suppress(NotFound):
        store.put(path, store.get(path).data)


@dataclass(eq=False)
class _Late:
    """A write on its way: how many more calls it takes, and what it does when it arrives."""

    calls: int
    path: str
    write: Write


class FaultyStore:
    """A store that goes wrong on purpose, by chance from a seed, or when told to.

    It keeps every promise of the store it wraps that a real store keeps, and breaks every one that a real store
    breaks: errors before and after a write took effect, one's own success reported as a conflict, `AlreadyExists`
    while absent, a third party in between, late application, delays, jumps of time. What each means is in `Fault`.

    `rates` says how often each fault comes (`{}`: never by chance; default: each at 0.05). `third_party(store, path)`
    is somebody else's write, made on the store below; by default it replaces the object by itself. `sleep` is what
    a delay calls, with up to `max_delay` seconds. Calls after `inject` meet what was asked for; `met` counts.

    >>> from penstock import open_store
    >>> store = FaultyStore(open_store("memory://doctest-faults"), seed=1, rates={})
    >>> store.inject(Fault.ERROR_AFTER)
    >>> store.put("a", b"hello")
    Traceback (most recent call last):
        ...
    penstock.errors.OutcomeUnknown: injected: the reply to put 'a' was lost
    >>> store.get("a").data
    b'hello'
    """

    def __init__(
        self,
        store: ObjectStore,
        seed: int = 0,
        *,
        rates: Mapping[Fault, float] = DEFAULT_RATES,
        third_party: ThirdParty = rewrite,
        sleep: Callable[[float], object] = time.sleep,
        max_delay: float = 0.002,
    ) -> None:
        self._store = store
        self._third_party = third_party
        self._sleep = sleep
        self._max_delay = max_delay
        self._dice = Dice(seed, rates)
        self._late: list[_Late] = []
        self._jump = timedelta()
        self._jumps: dict[str, timedelta] = {}
        self._quiet = 0
        self._lock = threading.RLock()

    @property
    def url(self) -> str:
        """Where the store below is."""
        return self._store.url

    @property
    def met(self) -> Counter[Fault]:
        """How often each fault has come so far."""
        return +self._dice.met

    def __repr__(self) -> str:
        return f"FaultyStore({self._store!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._late:
            raise InvalidInput("a FaultyStore with late writes under way cannot be pickled: call settle() first")
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    def inject(self, fault: Fault, *, operation: str | None = None, path: str | None = None, times: int = 1) -> None:
        """Ask for a fault at the next call (of that operation, on that path) where it can come."""
        with self._lock:
            self._dice.planned += [Planned(fault, operation, path)] * times

    def settle(self) -> int:
        """Let every late write arrive now, and say how many took effect."""
        return self._arrive(everything=True)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Within this, nothing goes wrong: for looking at what is really there. Late writes arrive first."""
        self.settle()
        with self._lock:
            self._quiet += 1
        try:
            yield
        finally:
            with self._lock:
                self._quiet -= 1

    def clock(self) -> float:
        """The store's time, jumps and all, in seconds since 1970."""
        return time.time() + self._jump.total_seconds()

    def get(self, path: str) -> Object:
        """Read a whole object. Meets `READ_ERROR`."""
        self._begin("get", path)
        self._may_fail_reading("get", path)
        found = self._store.get(path)
        return replace(found, last_modified=found.last_modified + self._jump_of(path))

    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Meets `READ_ERROR`."""
        self._begin("head", path)
        self._may_fail_reading("head", path)
        return self._shifted(self._store.head(path))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List objects. Meets `READ_ERROR`, at once or in the middle."""
        self._begin("list_objects", prefix)
        found = self._store.list_objects(prefix)
        if self._meets(Fault.READ_ERROR, "list_objects", prefix):
            return self._broken_listing(found, prefix)
        return map(self._shifted, found)

    def put(self, path: str, data: Data) -> str:
        """Replace an object. Meets `ERROR_BEFORE`, `ERROR_AFTER` and `LATE`."""
        content = _frozen(data)
        return self._write("put", path, lambda: self._store.put(path, content))

    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object. Meets all that a conditional write can meet, and `EXISTS_WHILE_ABSENT`."""
        content = _frozen(data)
        return self._write("put_if_absent", path, lambda: self._store.put_if_absent(path, content))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object at `version`. Meets all that a conditional write can meet."""
        content = _frozen(data)
        return self._write("put_if_match", path, lambda: self._store.put_if_match(path, content, version))

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects. Any one of them meets `ERROR_BEFORE` or `ERROR_AFTER`."""
        checked = check_paths(paths)
        errors: dict[str, StorageError] = {}
        for path in checked:
            self._begin("delete", path)
            fault = self._first_met((Fault.ERROR_BEFORE, Fault.ERROR_AFTER), "delete", path)
            if fault:
                errors[path] = StorageError(f"injected: delete {path!r} failed ({fault})")
            if fault is not Fault.ERROR_BEFORE:
                errors |= {result.path: result.error for result in self._store.delete([path]) if result.error}
        return [DeleteResult(path, errors.get(path)) for path in checked]

    def _write(self, operation: str, path: str, write: Write) -> str:
        check_path(path)  # now, and not when a late write arrives
        self._begin(operation, path)
        conditional = operation != "put"
        if conditional and self._meets(Fault.THIRD_PARTY, operation, path):
            self._third_party(self._store, path)
        fault = self._first_met(_FAULTS_OF[operation], operation, path)
        try:
            if fault:
                self._fail(fault, operation, path, write)
            return self._applied(path, write)
        except StorageError:
            if conditional and self._meets(Fault.THIRD_PARTY, operation, path):
                self._third_party(self._store, path)
            raise

    def _fail(self, fault: Fault, operation: str, path: str, write: Write) -> NoReturn:
        if fault is Fault.EXISTS_WHILE_ABSENT:
            raise AlreadyExists(f"injected: {path!r} is said to exist")
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(_Late(self._dice.random.randint(1, _LATEST), path, write))
        elif fault is not Fault.ERROR_BEFORE:
            self._applied(path, write)
        if fault is Fault.APPLIED_THEN_CONFLICT:
            lost = AlreadyExists if operation == "put_if_absent" else Conflict
            raise lost(f"injected: {operation} {path!r} took effect, was tried again, and lost to itself")
        # The three cannot be told apart by who gets them, in the text neither.
        raise OutcomeUnknown(f"injected: the reply to {operation} {path!r} was lost")

    def _applied(self, path: str, write: Write) -> str:
        version = write()
        with self._lock:
            self._jumps[path] = self._jump
        return version

    def _begin(self, operation: str, path: str) -> None:
        self._arrive(everything=False)
        if self._meets(Fault.DELAY, operation, path):
            self._sleep(self._dice.random.uniform(0, self._max_delay))
        if self._meets(Fault.TIME_JUMP, operation, path):
            with self._lock:
                self._jump = _LONGEST_JUMP * self._dice.random.uniform(-1, 1)

    def _arrive(self, *, everything: bool) -> int:
        with self._lock:
            for late in self._late:
                late.calls -= 1
            due = [late for late in self._late if everything or late.calls <= 0]
            self._late = [late for late in self._late if late not in due]
        took_effect = 0
        for late in due:
            with suppress(StorageError):  # its condition does not hold any more, and nobody waits for the answer
                self._applied(late.path, late.write)
                took_effect += 1
        return took_effect

    def _may_fail_reading(self, operation: str, path: str) -> None:
        if self._meets(Fault.READ_ERROR, operation, path):
            raise StorageError(f"injected: {operation} {path!r} failed")

    def _broken_listing(self, found: Iterator[ObjectMeta], prefix: str) -> Iterator[ObjectMeta]:
        rest = list(found)
        yield from map(self._shifted, rest[: self._dice.random.randint(0, len(rest))])
        raise StorageError(f"injected: the listing of {prefix!r} broke off")

    def _shifted(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, last_modified=meta.last_modified + self._jump_of(meta.path))

    def _jump_of(self, path: str) -> timedelta:
        with self._lock:
            return self._jumps.get(path, timedelta())

    def _meets(self, fault: Fault, operation: str, path: str) -> bool:
        with self._lock:
            return not self._quiet and self._dice.meets(fault, operation, path)

    def _first_met(self, faults: tuple[Fault, ...], operation: str, path: str) -> Fault | None:
        with self._lock:
            return None if self._quiet else self._dice.first_met(faults, operation, path)


_FAULTS_OF = {
    "put": (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LATE),
    "put_if_match": (Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.LATE, Fault.APPLIED_THEN_CONFLICT),
    "put_if_absent": (
        Fault.ERROR_BEFORE,
        Fault.ERROR_AFTER,
        Fault.LATE,
        Fault.APPLIED_THEN_CONFLICT,
        Fault.EXISTS_WHILE_ABSENT,
    ),
}


def _frozen(data: Data) -> bytes:
    # A late write must not change with the caller's buffer.
    return bytes(as_data(data))
