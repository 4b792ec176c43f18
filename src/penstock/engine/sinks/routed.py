"""`RoutedSink`: one block fans out to several sinks, and is committed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.engine.delivery import close_if_coroutine, is_work_not_begun
from penstock.engine.parsing.one_payload import field
from penstock.engine.sinks.combined import (
    CombinedSink,
    error_of_awaited,
    error_of_call,
    error_of_delivery,
    is_work_to_await,
)
from penstock.engine.work_batch import WorkBatch
from penstock.errors import CorruptData, InvalidInput, ParseFailed, RouteFailed
from penstock.records import Record, check_record_columns

RouteSink: TypeAlias = Callable[[WorkBatch], Any]

_FIELD = "field:"
_DEFAULT = "default"
_MAX_NAME_CHARACTERS = 80


class RoutedSink(CombinedSink):
    """Sends each record of a block to the sink of its route. A block is delivered when all of its routes have.

    `by(record)` returns the name of a route; `"field:a.b"` is the value of a field of the payload, in JSON or
    MessagePack, or of the column of that name where the batch has columns of its own. `default` is for records whose
    route is not in `sinks`: the name of a route, or a sink. Without one such a record fails the block, and nothing is
    sent.

    Each sink gets a `WorkBatch` with its records, in their order, and without commit tokens: with
    `CommitMode.SINK_MANAGED` a route cannot know whether the others have delivered. A sink that is called for a block
    may see that block again, after another route has failed: routes are at least once, each for itself.

    All routes are called and waited for, also after an error. Then `RouteFailed` names those that failed, and no other.
    A sink may be plain or `async def`; where one is `async def`, so is this one.

    >>> clicks, rest = [], []
    >>> sink = RoutedSink({"click": clicks.append}, by="field:type", default=rest.append)
    >>> sink(WorkBatch([Record(b'{"type": "click"}'), Record(b'{"type": "view"}')]))
    >>> [batch.records[0].value for batch in clicks + rest]
    [b'{"type": "click"}', b'{"type": "view"}']
    """

    def __init__(
        self,
        sinks: Mapping[str, RouteSink],
        *,
        by: Callable[[Record], str] | str,
        default: str | RouteSink | None = None,
    ) -> None:
        given: object = sinks
        if not isinstance(given, Mapping) or not given:
            raise InvalidInput("a RoutedSink takes a dict of sinks by the name of their route, with one at least")
        for name, sink in given.items():
            if not (isinstance(name, str) and callable(sink)):
                raise InvalidInput(f"a route has a name and a function of a batch; {name!r} has {type(sink).__name__}")
        self._sinks = dict(sinks)
        self._default = self._checked_default(default)
        self._path: str | None = None
        self._by: Callable[[Record], str] | None = None
        if callable(by):
            self._by = by
        elif str(by).startswith(_FIELD) and all(by.removeprefix(_FIELD).split(".")):
            self._path = by.removeprefix(_FIELD)
        else:
            raise InvalidInput(f"by must be a function of a record, or 'field:NAME' such as 'field:type', not {by!r}")

    def __repr__(self) -> str:
        return f"RoutedSink({', '.join(self._sinks)})"

    def __call__(self, batch: WorkBatch) -> Any:
        """Send a batch. Raises `RouteFailed`, and `InvalidInput` for a record without a route, before any is sent."""
        returned: dict[str, object] = {}
        failed: dict[str, Exception] = {}
        for name, part in self._parts(batch).items():
            returned[name], error = error_of_call(lambda name=name, part=part: self._sinks[name](part))  # type: ignore[misc]
            if error is not None:
                failed[name] = error
        if any(map(is_work_to_await, returned.values())):
            return self._awaited(returned, failed)
        for name, delivery in returned.items():
            error = error_of_delivery(delivery)
            if error is not None:
                failed[name] = error
        _raise(failed, len(returned))
        return None

    def _all(self) -> list[object]:
        return list(self._sinks.values())

    async def _awaited(self, returned: dict[str, object], failed: dict[str, Exception]) -> None:
        errors = await asyncio.gather(*map(error_of_awaited, returned.values()))
        failed |= {name: error for name, error in zip(returned, errors, strict=True) if error is not None}
        _raise(failed, len(returned))

    def _checked_default(self, default: object) -> str | None:
        if default is None:
            return None
        if isinstance(default, str):
            if default not in self._sinks:
                raise InvalidInput(f"default is {default!r}, and the routes are {', '.join(self._sinks)}")
            return default
        if not callable(default) or _DEFAULT in self._sinks:
            raise InvalidInput(
                f"default must be the name of a route, or a sink where no route is called {_DEFAULT!r}, not {default!r}"
            )
        self._sinks[_DEFAULT] = default
        return _DEFAULT

    def _parts(self, batch: WorkBatch) -> dict[str, WorkBatch]:
        """The records of each route, in their order."""
        rows: dict[str, list[int]] = {}
        known: dict[object, str] = {}
        for row, name in enumerate(self._names(batch)):
            route = known.get(name) if isinstance(name, str) else None
            if route is None:
                route = self._route(name, row)
                if isinstance(name, str):
                    known[name] = route
            rows.setdefault(route, []).append(row)
        if len(rows) == 1:
            return {next(iter(rows)): batch.with_tokens(())}
        return {name: _taken(batch, of) for name, of in rows.items()}

    def _names(self, batch: WorkBatch) -> list[Any]:
        if self._by is not None:
            return [self._by(record) for record in batch.records]
        assert self._path is not None  # noqa: S101  one of the two is there
        if not _are_records(batch.arrow):
            return _column(batch.arrow, self._path)
        path = self._path
        return [_name_in(value or b"", path) for value in batch.arrow.column("value").to_pylist()]

    def _route(self, name: object, row: int) -> str:
        if isinstance(name, str) and name in self._sinks:
            return name
        if is_work_not_begun(name):
            close_if_coroutine(name)
            raise InvalidInput(
                f"by must be a plain function, and it returned a {type(name).__name__}; nothing was sent"
            )
        if self._default is not None:
            return self._default
        shown = repr(name)
        if len(shown) > _MAX_NAME_CHARACTERS:
            shown = f"{shown[:_MAX_NAME_CHARACTERS]}…"
        raise InvalidInput(
            f"record {row} is of the route {shown}, and the routes are {', '.join(self._sinks)}; nothing was sent. "
            "Give it a sink, or all others one with default="
        )


def _raise(failed: Mapping[str, Exception], called: int) -> None:
    """Raise one error that names each route that failed. What has succeeded is not named."""
    if not failed:
        return
    causes = [f"the route {name!r} failed: {type(error).__name__}: {error}" for name, error in failed.items()]
    others = called - len(failed)
    delivered = f" ({others} other routes have delivered, and get the block again)" if others else ""
    raise RouteFailed(f"{'; '.join(causes)}{delivered}", routes=tuple(failed)) from next(iter(failed.values()))


def _are_records(columns: pa.RecordBatch) -> bool:
    try:
        check_record_columns(columns.schema)
    except CorruptData:
        return False
    return True


def _taken(batch: WorkBatch, rows: list[int]) -> WorkBatch:
    """Some rows of a batch, without tokens: a slice where they follow each other."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch.piece(rows[0], rows[-1] + 1)
    taken = batch.arrow.take(pa.array(rows, pa.int64()))
    return WorkBatch.of_checked(taken, ()) if _are_records(taken) else WorkBatch.of_columns(taken)


def _column(columns: pa.RecordBatch, path: str) -> list[Any]:
    """The values of a column, or of a field of one that is a struct."""
    first, *rest = path.split(".")
    if columns.schema.get_field_index(first) < 0:
        raise InvalidInput(f"there is no column {first!r} to route by; there are {', '.join(columns.schema.names)}")
    values: list[Any] = columns.column(first).to_pylist()
    for part in rest:
        values = [value.get(part) if isinstance(value, dict) else None for value in values]
    return values


def _name_in(payload: bytes, path: str) -> Any:
    """The value of a field of a payload; None where it is not there, or the payload cannot be parsed."""
    try:
        return field(payload, path)
    except ParseFailed:
        return None
