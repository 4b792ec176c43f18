"""The table of the guide to parsing is what the parser and Spark's own `from_json` do, value by value.

`python -m tests.spark.pipeline.test_parse_modes_beside_spark` prints the table as it should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.engine import ParseOptions, parse_as
from penstock.spark.source.schemas import to_arrow
from tests.support.repository import ROOT
from tests.support.spark_session import local_session

GUIDE = ROOT / "docs" / "guides" / "parse.md"
HEAD = "| | column | value | strict | lenient | Spark's `from_json` |\n|---|---|---|---|---|---|\n"
ERROR = "error"


@dataclass(frozen=True)
class Rule:
    """What goes into a column of some type, with values as JSON has them."""

    text: str
    kind: str
    values: tuple[str, ...]
    unit: str | None = None


RULES = [
    Rule("a number as text", "bigint", ("42", '"42"', '" 42 "', '"x"', '""')),
    Rule("a whole number with a point or an exponent", "bigint", ("3.0", '"3.0"', "1e3", "3.5", "9223372036854775808")),
    Rule("no number", "bigint", ("true", "[1]")),
    Rule("a number as text", "double", ("1", '"1.5"', "1e999")),
    Rule("not finite", "double", ('"NaN"', '"Infinity"', '"-Infinity"', '"inf"', "NaN", "-Infinity")),
    Rule("a truth as text", "boolean", ("true", '"true"', '"False"', "1", '"yes"')),
    Rule("another value as text", "string", ("1.50", "true", '{"b": [1]}')),
    Rule("digits behind the column's, half away from zero", "decimal(5,2)", ("1.555", '"-1.545"', "1.554")),
    Rule("too many digits in front", "decimal(5,2)", ("1000", "999.995")),
    Rule("a date that is not quite one", "date", ('"2026-1-3"', '"2026-01-31T12:00:00Z"', '"2026-01-31 12:00"')),
    Rule("a time with an offset: the day in UTC", "date", ('"2026-01-31T23:30:00-01:00"',)),
    Rule("a number, or no date", "date", ("20484", '"20484"', '"31.01.2026"', '"2026-02-30"')),
    Rule("a time", "timestamp", ('"2026-01-31T12:00:00Z"', '"2026-01-31 12:00"', '"2026-01-31T13:00:00+0100"')),
    Rule("a time that is not quite one", "timestamp", ('"2026-1-3"', '"2026-01-31 12:00:00 UTC"', '"2026-1-31 9:05"')),
    Rule("seconds since 1970", "timestamp", ("1769860800", '"1769860800"', "1769860800.5")),
    Rule("milliseconds since 1970", "timestamp", ("1769860800000", '"1769860800000"')),
    Rule("a number of another size", "timestamp", ("0", "-1769860800", '"2026"', "99999999999")),
    Rule('with `timestamp_unit="ms"`', "timestamp", ("0", "-1769860800000", '"0"'), unit="ms"),
    Rule("a time in UTC", "timestamp_ntz", ('"2026-01-31T12:00:00Z"', "1769860800")),
    Rule("a time with an offset", "timestamp_ntz", ('"2026-01-31T13:00:00+01:00"',)),
]


def ours(rule: Rule, value: str, mode: str) -> str:
    from pyspark.sql.types import StructType

    from penstock.spark.versions import columns_from_ddl

    schema = to_arrow(cast("StructType", columns_from_ddl(f"a {rule.kind}")))
    payload = pa.array([b'{"a": %b}' % value.encode()], pa.binary())
    parsed = parse_as(payload, schema, options=ParseOptions(mode, timestamp_unit=rule.unit))
    return ERROR if parsed.errors else written(parsed.batch.column(0)[0].as_py())


def written(value: Any) -> str:
    """As Spark writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ").removesuffix("00000")
    return value.isoformat() if isinstance(value, date) else str(value)


def of_spark(rule: Rule, session: Any) -> list[str]:
    """What `from_json` makes of the values. What does not fit is null there, as if it had not been in the payload."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = session.createDataFrame(
        [(at, f'{{"a": {value}}}') for at, value in enumerate(rule.values)], "at int, p string"
    )
    parsed = F.from_json("p", f"a {rule.kind}", {"timeZone": "UTC"})
    found = rows.select("at", parsed.alias("r")).orderBy("at").select(F.col("r.a").cast("string")).collect()
    return ["null" if row[0] is None else row[0] for row in found]


def table(session: Any) -> str:
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        return HEAD + "".join(lines(rule, of_spark(rule, session)) for rule in RULES)
    finally:
        session.conf.set("spark.sql.session.timeZone", before)


def lines(rule: Rule, of_spark: list[str]) -> str:
    text = ""
    for at, (value, spark) in enumerate(zip(rule.values, of_spark, strict=True)):
        cells = [f"`{value}`", *(shown(ours(rule, value, mode)) for mode in ("strict", "lenient")), shown(spark)]
        kind = f"`{rule.kind}`"
        text += f"| {rule.text if at == 0 else ''} | {kind if at == 0 else ''} | {' | '.join(cells)} |\n"
    return text


def shown(text: str) -> str:
    return text if text in {ERROR, "null"} else f"`{text}`"


@pytest.mark.slow
def test_the_guide_has_what_the_parser_and_spark_do(spark: Any) -> None:
    assert table(spark) in GUIDE.read_text()


def test_the_guide_has_what_the_parser_does() -> None:
    guide = GUIDE.read_text()
    for rule in RULES:
        for value in rule.values:
            strict, lenient = (shown(ours(rule, value, mode)) for mode in ("strict", "lenient"))
            assert f"| `{value}` | {strict} | {lenient} | " in guide, (rule, value)


if __name__ == "__main__":
    here = local_session()
    print(table(here))
    here.stop()
