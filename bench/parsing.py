"""Parsing a block of events: into columns, against a loop over the records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from bench.side_by_side import Contest, show
from penstock.engine import ParseFormat, parse_as
from penstock.engine.parsing.parser import parse_inferred, parse_objects

EVENTS = 200_000
BAD = 1000  # one event in so many does not parse
KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "kind": pa.string(), "at": pa.timestamp("us", tz="UTC")}
SCHEMA = pa.schema(KINDS)


def events(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [
        {
            "id": number,
            "user": f"user-{rng.randrange(5000)}",
            "kind": rng.choice(["click", "view", "purchase"]),
            "amount": round(rng.random() * 100, 2),
            "ok": number % 2 == 0,
            "at": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z",
        }
        for number in range(count)
    ]


def with_bad(values: list[bytes], bad: bytes) -> list[bytes]:
    return [bad if number % BAD == BAD // 2 else value for number, value in enumerate(values)]


def into_columns(values: list[bytes], form: ParseFormat) -> Callable[[int], object]:
    column = pa.array(values, pa.binary())

    def work(count: int) -> object:
        parsed = parse_inferred(column, form)
        assert parsed.batch.num_rows + len(parsed.errors) == count
        return parsed.batch

    return work


def into_typed_columns(values: list[bytes], form: ParseFormat) -> Callable[[int], object]:
    column = pa.array(values, pa.binary())
    return lambda _: parse_as(column, SCHEMA, form)


def into_objects(values: list[bytes], form: ParseFormat) -> Callable[[int], object]:
    column = pa.array(values, pa.binary())
    return lambda _: parse_objects(column, form).objects


def one_by_one(values: list[bytes], decode: Callable[[bytes], object]) -> Callable[[int], object]:
    def work(_: int) -> object:
        good, bad = [], 0
        for value in values:
            try:
                good.append(decode(value))
            except ValueError:
                bad += 1
        return good, bad

    return work


def run() -> None:
    rows = events(EVENTS)
    texts = with_bad([json.dumps(row).encode() for row in rows], b'{"id": oops}')
    packed = with_bad([msgspec.msgpack.encode(row) for row in rows], b"\x81\xa2id\xc1")
    binary = with_bad([msgspec.msgpack.encode({**row, "raw": b"\x00\xff"}) for row in rows], b"\x81\xa2id\xc1")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    timed = [msgspec.msgpack.encode({**row, "at": start + timedelta(seconds=row["id"])}) for row in rows]
    unlike = [msgspec.msgpack.encode({"id": "a misfit"}) if at % BAD == 1 else value for at, value in enumerate(packed)]
    mixed = [b'{"id": "a misfit"}' if number % BAD == 1 else text for number, text in enumerate(texts)]
    in_turns = [text if at % 2 else pack for at, (text, pack) in enumerate(zip(texts, packed, strict=True))]
    loop = one_by_one(texts, json.loads)
    unpack = one_by_one(packed, msgspec.msgpack.decode)
    show(
        f"Parsing {EVENTS:,} events of {sum(map(len, texts)) // EVENTS} bytes in JSON, one in {BAD:,} bad",
        [
            Contest(
                "JSON into columns",
                EVENTS,
                {
                    "Penstock": into_columns(texts, ParseFormat.JSON),
                    "json.loads, each": loop,
                    "msgspec.json.decode, each": one_by_one(texts, msgspec.json.decode),
                },
                rounds=11,
            ),
            Contest(
                "JSON into columns of given types",
                EVENTS,
                {"Penstock": into_typed_columns(texts, ParseFormat.JSON), "json.loads, each": loop},
            ),
            Contest(
                "JSON into objects",
                EVENTS,
                {"Penstock": into_objects(texts, ParseFormat.JSON), "json.loads, each": loop},
            ),
            Contest(
                "JSON into columns, and one in 1,000 does not fit",
                EVENTS,
                {"Penstock": into_columns(mixed, ParseFormat.JSON), "json.loads, each": one_by_one(mixed, json.loads)},
            ),
            Contest(
                "MessagePack into columns",
                EVENTS,
                {
                    "Penstock": into_columns(packed, ParseFormat.MSGPACK),
                    "json.loads, each": loop,
                    "msgspec.msgpack.decode, each": unpack,
                },
                rounds=11,
            ),
            Contest(
                "JSON into columns, the format found by itself",
                EVENTS,
                {
                    "Penstock, auto": into_columns(texts, ParseFormat.AUTO),
                    "Penstock, json": into_columns(texts, ParseFormat.JSON),
                },
                rounds=11,
            ),
            Contest(
                "MessagePack into columns, the format found by itself",
                EVENTS,
                {
                    "Penstock, auto": into_columns(packed, ParseFormat.AUTO),
                    "Penstock, msgpack": into_columns(packed, ParseFormat.MSGPACK),
                },
                rounds=11,
            ),
            Contest(
                "JSON and MessagePack in turns into columns of given types",
                EVENTS,
                {
                    "Penstock, auto": into_typed_columns(in_turns, ParseFormat.AUTO),
                    "Penstock, all of it JSON": into_typed_columns(texts, ParseFormat.JSON),
                },
            ),
            Contest(
                "MessagePack with binary into columns",
                EVENTS,
                {"Penstock": into_columns(binary, ParseFormat.MSGPACK), "json.loads, each, without the binary": loop},
            ),
            Contest(
                "MessagePack with timestamps into columns",
                EVENTS,
                {"Penstock": into_columns(timed, ParseFormat.MSGPACK), "json.loads, each, with text instead": loop},
            ),
            Contest(
                "MessagePack into columns, and one in 1,000 does not fit",
                EVENTS,
                {"Penstock": into_columns(unlike, ParseFormat.MSGPACK), "json.loads, each": loop},
            ),
        ],
    )


if __name__ == "__main__":
    run()
