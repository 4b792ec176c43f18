"""Events that are told apart by their numbers, and rows as a reader gives them, to be compared one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

SCHEMA = (
    "id bigint, event string, at timestamp, day date, whole int, ratio double, money decimal(20, 4), "
    "tags array<string>, place struct<lat: double, name: string>"
)
Row = dict[str, Any]

_START = datetime(2026, 1, 30, 22, 30, 0, 123456, UTC)


def row(number: int) -> Row:
    """The row that an event becomes: a fifth of the values is null."""
    at = _START + timedelta(minutes=37 * number)
    place = {"lat": number / 4, "name": f"p {number} ü"}
    values: Row = {
        "event": f"a b/c%25={number % 3}",
        "at": at.isoformat(),
        "day": at.date().isoformat(),
        "whole": -number,
        "ratio": number / 8,
        "money": f"{number}.2500",
        "tags": [f"t {number}", None],
        "place": place,
    }
    return {"id": number} | {name: value if hash_of(name, number) else None for name, value in values.items()}


def hash_of(name: str, number: int) -> int:
    """0 for each fifth number, which are others for each column."""
    return (number + len(name)) % 5


def payloads(rows: Iterable[Row]) -> list[bytes]:
    """The payloads that are parsed to these rows."""
    return [json.dumps(one).encode() for one in rows]


def rows_of(frame: Any) -> list[Row]:
    """The rows that a reader gives, in order, with the same values as `row` has."""
    texts = {"at": "date_format(at, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\")", "money": "cast(money as string)"}
    columns = ", ".join(f"{texts.get(name, name)} as {name}" for name in frame.columns)
    as_json = f"to_json(named_struct('row', struct({columns})), map('ignoreNullFields', 'false')) as row"
    found = [json.loads(one["row"])["row"] for one in frame.selectExpr(as_json).collect()]
    for one in found:
        if one.get("at") is not None:
            one["at"] = datetime.fromisoformat(one["at"]).isoformat()
    return sorted(found, key=lambda one: one["id"])


FILTERS: dict[str, Callable[[Row], bool]] = {
    "id = 17": lambda one: one["id"] == 17,
    "id between 5 and 11": lambda one: 5 <= one["id"] <= 11,
    "event = 'a b/c%25=1'": lambda one: one["event"] == "a b/c%25=1",
    "event is null": lambda one: one["event"] is None,
    "at >= timestamp'2026-01-31T12:00:00Z'": lambda one: (one["at"] or "") >= "2026-01-31T12:00:00",
    "at is null": lambda one: one["at"] is None,
    "day = date'2026-01-31'": lambda one: one["day"] == "2026-01-31",
    "whole < -20": lambda one: one["whole"] is not None and one["whole"] < -20,
    "ratio > 2.5": lambda one: one["ratio"] is not None and one["ratio"] > 2.5,
    "money <= 12.25": lambda one: one["money"] is not None and float(one["money"]) <= 12.25,
    "place.name = 'p 9 ü'": lambda one: one["place"] is not None and one["place"]["name"] == "p 9 ü",
}
"""Conditions in SQL by which a reader leaves out files, and what each means."""


def check(read: Callable[[], Any], expected: Iterable[Row]) -> None:
    """Compare the rows of a table, all of them and those under each condition, with the expected ones."""
    wanted = sorted(expected, key=lambda one: one["id"])
    assert rows_of(read()) == wanted
    for condition, holds in FILTERS.items():
        assert rows_of(read().where(condition)) == [one for one in wanted if holds(one)], condition
