"""`FaultyStore`: any store, with faults injected from a seed."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

from penstock.core import begin_anew_in_child
from penstock.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PenstockError,
    StorageError,
)
from penstock.storage import (
    Data,
    DeleteResult,
    Object,
    ObjectMeta,
    ObjectStore,
    Reserve,
    as_data,
    as_version,
    check_path,
    check_path_in,
    check_paths,
    check_prefix,
    get_at_most,
    open_store,
    replace_with_reserve,
)
from penstock.testing.faults import DEFAULT_RATES, Dice, Drawn, Fault, Planned

ThirdParty = Callable[[ObjectStore, str], object]
Write = Callable[[], str]


def rewrite(store: ObjectStore, path: str) -> None:
    """The plainest third party: replaces an object by itself, and leaves an absent one absent.

    By compare-and-set, as an honest third party does: no write is lost to it. Where the version is made from the
    content (S3) it changes nothing; give a third party of your own there.
    """
    found = store.get(path)
    store.put_if_match(path, found.data, found.version)


@dataclass(eq=False)
class _Late:
    """A write on its way: how many more calls it takes, and what it does when it arrives."""

    calls: int
    path: str
    write: Write


class FaultyStore:
    """A store that goes wrong on purpose, by chance from a seed, or on request.

    It keeps every promise of the store it wraps that a real store keeps, and breaks every one that a real store
    breaks: errors before and after a write took effect, one's own success reported as a conflict, `AlreadyExists`
    while absent, a third party in between, late application, delays, jumps of time. What each means is in `Fault`.

    `rates` says how often each fault comes (`{}`: never by chance; default: each at 0.05). `third_party(store, path)`
    is another writer's write, made on the store below; by default it replaces the object by itself. A delay calls
    `sleep` with up to `max_delay` seconds; a jump sets the store's clock off by up to `max_jump` seconds, either way;
    a late write arrives after at most `max_late` calls. Calls after `inject` meet what was asked for.

    >>> store = FaultyStore("memory://doctest-faults", seed=1, rates={})
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
        store: str | os.PathLike[str] | ObjectStore,
        seed: int = 0,
        *,
        rates: Mapping[Fault, float] = DEFAULT_RATES,
        third_party: ThirdParty = rewrite,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.time,
        max_delay: float = 0.002,
        max_jump: float = 86_400.0,
        max_late: int = 5,
    ) -> None:
        if max_late < 1 or max_delay < 0 or max_jump < 0:
            raise InvalidInput(f"max_late {max_late}, max_delay {max_delay}, max_jump {max_jump}: at least 1, 0 and 0")
        self._store = open_store(store)
        self._third_party = third_party
        self._sleep = sleep
        self._host_clock = clock
        self._max_delay = max_delay
        self._max_jump = timedelta(seconds=max_jump)
        self._max_late = max_late
        self._dice = Dice(seed, rates)
        self._late: list[_Late] = []
        self._jump = timedelta()
        self._jumps: dict[tuple[str, str], timedelta] = {}
        self._quiet = 0
        self._lock = threading.RLock()
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Have a lock of its own in a forked child. Writes that are late there arrive from the parent."""
        self._lock = threading.RLock()
        self._late = []

    @property
    def url(self) -> str:
        """Where the store below is."""
        return self._store.url

    @property
    def met(self) -> Counter[Fault]:
        """How often each fault has come so far."""
        return +self._dice.met

    @property
    def planned(self) -> list[Planned]:
        """The faults that were asked for and have not come yet: empty at the end of a test that met them all."""
        return list(self._dice.planned)

    def __repr__(self) -> str:
        return f"FaultyStore({self._store!r})"

    def check_path(self, path: str) -> None:
        """Raise `InvalidInput` unless the store below could keep an object at a path."""
        check_path_in(self._store, path)

    def __getstate__(self) -> dict[str, Any]:
        if self._late:
            raise InvalidInput("a FaultyStore with late writes under way cannot be pickled: call settle() first")
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
        begin_anew_in_child(self)

    def inject(self, fault: Fault, *, operation: str | None = None, path: str | None = None, times: int = 1) -> None:
        """Ask for a fault at the next call (of that operation, on that path) where it can come.

        Raises `InvalidInput` for a fault that there is not, or that the operation cannot meet.
        """
        if fault not in set(Fault):
            raise InvalidInput(f"there is no fault {fault!r}; there are: {', '.join(Fault)}")
        with self._lock:
            self._dice.planned += [Planned(Fault(fault), operation, path)] * times

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
        return self._host_clock() + self._jump.total_seconds()

    def get(self, path: str, *, max_bytes: int | None = None) -> Object:
        """Read a whole object. Meets `READ_ERROR`."""
        self._read("get", check_path(path))
        found = self._store.get(path) if max_bytes is None else get_at_most(self._store, path, max_bytes)
        return replace(found, last_modified=found.last_modified + self._jump_of(path, found.version))

    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Meets `READ_ERROR`."""
        self._read("head", check_path(path))
        return self._shifted(self._store.head(path))

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List objects. Meets `READ_ERROR`, at once or in the middle."""
        prefix = check_prefix(prefix)
        self._begin("list_objects", prefix)
        found = self._store.list_objects(prefix)
        drawn = self._draw("list_objects", prefix, Fault.READ_ERROR)
        return self._broken_listing(drawn, found, prefix) if drawn else map(self._shifted, found)

    def put(self, path: str, data: Data) -> str:
        """Replace an object. Meets `ERROR_BEFORE`, `ERROR_AFTER` and `LATE`."""
        content = _frozen(data)
        return self._write("put", path, lambda: self._store.put(path, content))

    def put_if_absent(self, path: str, data: Data, *, reserve: Reserve | None = None) -> str:
        """Create an object. Meets all that a conditional write can meet, and `EXISTS_WHILE_ABSENT`."""
        content = _frozen(data)
        return self._write(
            "put_if_absent", path, lambda: replace_with_reserve(self._store, path, content, None, reserve)
        )

    def put_if_match(self, path: str, data: Data, version: str, *, reserve: Reserve | None = None) -> str:
        """Replace the object at `version`. Meets all that a conditional write can meet."""
        content = _frozen(data)
        as_version(version)
        return self._write(
            "put_if_match", path, lambda: replace_with_reserve(self._store, path, content, version, reserve)
        )

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects. Any one of them meets `ERROR_BEFORE` or `ERROR_AFTER`."""
        checked = check_paths(paths)
        results = {path: self._delete(path) for path in dict.fromkeys(checked)}
        return [results[path] for path in checked]

    def _delete(self, path: str) -> DeleteResult:
        self._begin("delete", path)
        drawn = self._draw("delete", path, Fault.ERROR_BEFORE, Fault.ERROR_AFTER)
        result = DeleteResult(path)
        if not drawn or drawn.fault is Fault.ERROR_AFTER:
            result = self._store.delete([path])[0]
        if not drawn:
            return result
        self._came(drawn)
        return DeleteResult(path, StorageError(f"injected: delete {path!r} failed"))

    def _write(self, operation: str, path: str, write: Write) -> str:
        check_path(path)
        self._begin(operation, path)
        self._let_third_party(Fault.THIRD_PARTY_BEFORE, operation, path)
        drawn = self._draw(
            operation,
            path,
            Fault.ERROR_BEFORE,
            Fault.ERROR_AFTER,
            Fault.LATE,
            Fault.APPLIED_THEN_CONFLICT,
            Fault.EXISTS_WHILE_ABSENT,
        )
        try:
            if drawn and self._has_occasion(drawn, path, write):
                self._came(drawn)
                self._fail(drawn.fault, operation, path, write)
            return self._apply(path, write)
        except StorageError:
            self._let_third_party(Fault.THIRD_PARTY_AFTER, operation, path)
            raise

    def _has_occasion(self, drawn: Drawn, path: str, write: Write) -> bool:
        """Do what has to happen before the fault can come; if that fails or is not so, there is no occasion."""
        occasion = False
        try:
            if drawn.fault in {Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT}:
                self._apply(path, write)
            # Looking first also has the store below refuse a path that is not for it, now and not when it is late.
            occasion = not self._exists(path) or drawn.fault is not Fault.EXISTS_WHILE_ABSENT
        finally:
            if not occasion:
                with self._lock:
                    self._dice.did_not_come(drawn)
        return occasion

    def _fail(self, fault: Fault, operation: str, path: str, write: Write) -> NoReturn:
        if fault is Fault.EXISTS_WHILE_ABSENT:
            raise AlreadyExists(f"injected: {path!r} seems to exist")
        if fault is Fault.APPLIED_THEN_CONFLICT:
            lost = AlreadyExists if operation == "put_if_absent" else Conflict
            raise lost(f"injected: {operation} {path!r} took effect, was tried again, and lost to itself")
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(_Late(self._dice.random.randint(1, self._max_late), path, write))
        # Before, after or late: the caller cannot tell them apart, not by the text either.
        raise OutcomeUnknown(f"injected: the reply to {operation} {path!r} was lost")

    def _exists(self, path: str) -> bool:
        try:
            self._store.head(path)
        except NotFound:
            return False
        return True

    def _apply(self, path: str, write: Write) -> str:
        with self._lock:  # over both, so that a reader of the new version finds its date
            version = write()
            if self._jump:
                self._jumps[path, version] = self._jump
        return version

    def _let_third_party(self, fault: Fault, operation: str, path: str) -> None:
        if self._meets(operation, path, fault):
            with suppress(StorageError):  # what goes wrong for the third party does not concern the caller
                self._third_party(self._store, path)

    def _begin(self, operation: str, path: str) -> None:
        self._arrive(everything=False)
        if self._meets(operation, path, Fault.DELAY):
            self._sleep(self._dice.random.uniform(0, self._max_delay))
        if self._meets(operation, path, Fault.TIME_JUMP):
            with self._lock:
                self._jump = self._max_jump * self._dice.random.uniform(-1, 1)

    def _arrive(self, *, everything: bool) -> int:
        with self._lock:
            for late in self._late:
                late.calls -= 1
            due = [late for late in self._late if everything or late.calls <= 0]
            self._late = [late for late in self._late if late not in due]
        took_effect = 0
        for late in due:
            with suppress(PenstockError):  # its condition does not hold any more, and no caller waits for the answer
                self._apply(late.path, late.write)
                took_effect += 1
        return took_effect

    def _read(self, operation: str, path: str) -> None:
        self._begin(operation, path)
        if self._meets(operation, path, Fault.READ_ERROR):
            raise StorageError(f"injected: {operation} {path!r} failed")

    def _broken_listing(self, drawn: Drawn, found: Iterator[ObjectMeta], prefix: str) -> Iterator[ObjectMeta]:
        rest = list(found)
        yield from map(self._shifted, rest[: self._dice.random.randint(0, len(rest))])
        self._came(drawn)
        raise StorageError(f"injected: the listing of {prefix!r} broke off")

    def _shifted(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, last_modified=meta.last_modified + self._jump_of(meta.path, meta.version))

    def _jump_of(self, path: str, version: str) -> timedelta:
        with self._lock:
            return self._jumps.get((path, version), timedelta())

    def _draw(self, operation: str, path: str, *faults: Fault) -> Drawn | None:
        with self._lock:
            return None if self._quiet else self._dice.draw(operation, path, *faults)

    def _meets(self, operation: str, path: str, fault: Fault) -> bool:
        drawn = self._draw(operation, path, fault)
        if drawn:
            self._came(drawn)
        return drawn is not None

    def _came(self, drawn: Drawn) -> None:
        with self._lock:
            self._dice.came(drawn)


def _frozen(data: Data) -> bytes:
    # A late write must not change with the caller's buffer.
    return bytes(as_data(data))
