"""Where a pipeline's rows and dead letters go: the calls of a pipeline, checked, and how a run opens each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.core import as_word, check_whole
from penstock.errors import InvalidInput
from penstock.spark.pipeline.plan import Target
from penstock.spark.tables.contract import Sink
from penstock.spark.tables.opening import Evolution, TableKind, check_library, open_any_table
from penstock.storage import local_path, redact

_MERGE_MAX_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Upsert:
    """How rows replace others: by which columns, which of a block wins, and what is deleted."""

    merge_on: tuple[str, ...]
    order_by: str | None
    delete_when: str | None
    max_bytes: int

    @classmethod
    def of(cls, merge_on: object, order_by: object, delete_when: object, max_bytes: int | None) -> Upsert | None:
        """Check what a call was given; None where rows are appended. Raises `InvalidInput`."""
        if merge_on is None:
            given = {"order_by": order_by, "delete_when": delete_when, "merge_max_bytes": max_bytes}
            extra = next((name for name, value in given.items() if value is not None), None)
            if extra is not None:
                raise InvalidInput(f"{extra} goes with merge_on, which names the columns that rows are known by")
            return None
        columns = column_names("merge_on", merge_on)
        if not columns:
            raise InvalidInput("merge_on must name at least one column")
        if max_bytes is not None:
            check_whole("merge_max_bytes", max_bytes, 1)
        order, deletes = _text_or_none("order_by", order_by), _text_or_none("delete_when", delete_when)
        return cls(columns, order, deletes, _MERGE_MAX_BYTES if max_bytes is None else max_bytes)

    def options(self) -> dict[str, Any]:
        """As a table is opened with it."""
        return {
            "merge_on": self.merge_on,
            "order_by": self.order_by,
            "delete_when": self.delete_when,
            "merge_max_bytes": self.max_bytes,
        }


def _text_or_none(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, not {value!r}")
    if not value.strip():
        raise InvalidInput(f"{name} must not be empty")
    return value


def table_target(
    call: str,
    kind: TableKind,
    where: str | os.PathLike[str],
    *,
    partition_by: Sequence[str] | None = None,
    options: Mapping[str, object] | None = None,
    catalog: Mapping[str, object] | None = None,
    upsert: Upsert | None = None,
    schema_evolution: str = "add",
) -> Target:
    """A table as the target of a pipeline. Raises `InvalidInput` for what cannot be right."""
    if catalog is not None and kind is not TableKind.ICEBERG:
        raise InvalidInput(f"catalog goes with an Iceberg table, not with {kind}")
    if options is not None and kind is TableKind.ICEBERG:
        raise InvalidInput("options go with a path; those of an Iceberg table's store are properties of its catalog")
    check_library(kind, call)
    more: dict[str, Any] = {} if upsert is None else upsert.options()
    more["schema_evolution"] = as_word("schema_evolution", Evolution, schema_evolution)
    open_at = partial(
        open_any_table,
        kind=kind,
        partition_by=column_names("partition_by", partition_by),
        options=texts(options),
        catalog=None if catalog is None else texts(catalog),
        **more,
    )
    if kind is TableKind.ICEBERG:
        return _iceberg_target(call, where, open_at)
    return target_at(call, where, open_at)


def _iceberg_target(call: str, name: object, open_at: Callable[..., Sink]) -> Target:
    if not isinstance(name, str) or name.count(".") < 2 or not all(name.split(".")):
        raise InvalidInput(f"{call} takes the name of a table, 'catalog.namespace.table', not {name!r}")
    return Target(f"{call}({name!r})", lambda spark: open_at(spark, name), name, name)


def target_at(call: str, where: object, open_at: Callable[..., Sink]) -> Target:
    """A sink at a path or URL."""
    url = place_of(call, where)
    return Target(redact(f"{call}({url!r})"), lambda spark: open_at(spark, url), url, redact(url))


def place_of(name: str, where: object) -> str:
    """A path or URL. Raises `InvalidInput` for what is none, and for memory."""
    if not isinstance(where, str | os.PathLike) or not os.fspath(where):
        raise InvalidInput(f"{name} must be a path or a URL, not {where!r}")
    place = os.fsdecode(where)
    if place.startswith("memory:"):
        raise InvalidInput(f"{name} cannot be {place!r}: Spark works in several processes, and memory is of one")
    return place if "://" in place else local_path(place)


def for_spark(place: str) -> str:
    """A place as Spark writes it: a bare path is on this host's disk for us, and may be elsewhere for Spark."""
    is_local = "://" not in place or place.startswith("file:")
    return f"file://{local_path(place)}" if is_local else place


def column_names(option: str, names: object) -> tuple[str, ...]:
    """The names in a list. Raises `InvalidInput` naming the option."""
    if names is None:
        return ()
    columns = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (None,)
    if not all(isinstance(name, str) and name.strip() for name in columns):
        raise InvalidInput(f"{option} must be a list of column names, not {names!r}")
    return columns


def texts(options: object) -> dict[str, str]:
    """Options as text, as Spark has them. Raises `InvalidInput`."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidInput(f"options must be a dict, not {type(options).__name__}")
    wrong = next((name for name in options if not isinstance(name, str)), None)
    if wrong is not None:
        raise InvalidInput(f"options must have text for names, not {wrong!r}")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
