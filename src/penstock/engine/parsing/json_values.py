"""Payloads that are any JSON value each, an object or not, as one column of text: the value in compact JSON."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.payload_format import BadPayload
from penstock.engine.parsing.row_values import read_value
from penstock.errors import InvalidInput

VALUES = pa.schema([pa.field("value", pa.string())])
"""The one column, in which no row is null: a JSON null is the text `null`."""
_JSON = JsonPayloads()


def read_values(values: pa.Array[Any]) -> tuple[list[Any], dict[int, str]]:
    """The Python value of each payload that is one JSON value; and why the others are none."""
    found: list[Any] = []
    bad: dict[int, str] = {}
    for row, payload in enumerate(cast("list[bytes]", values.to_pylist())):
        try:
            found.append(_value(payload))
        except BadPayload as why:
            bad[row] = str(why)
    return found, bad


def read_texts(values: pa.Array[Any]) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The same as a column of compact JSON, with numbers as they are written."""
    texts: list[str] = []
    bad: dict[int, str] = {}
    for row, payload in enumerate(cast("list[bytes]", values.to_pylist())):
        try:
            _value(payload)
            texts.append(_JSON.text(payload))
        except BadPayload as why:
            bad[row] = str(why)
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=VALUES), bad


def check_values_schema(schema: pa.Schema) -> None:
    """Raise `InvalidInput` unless the schema is the one column that values go into."""
    if schema.names != VALUES.names or schema.field(0).type != pa.string():
        raise InvalidInput(f"json-values has one column, 'value', a string, and the schema has {schema.names}")


def _value(payload: bytes) -> Any:
    why = _JSON.why_no_value(payload)
    if why is not None:
        raise BadPayload(why)
    return read_value(payload, _JSON)
