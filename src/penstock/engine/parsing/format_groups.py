"""A block cut into groups of payloads, each of one format that the readers have: JSON or MessagePack.

Avro and Protobuf are decoded, and encoded as MessagePack, which has all their values; CSV becomes JSON, as text. So
every rule is the same for them, and every reason comes from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pyarrow as pa

from penstock.engine.parsing.payload_format import (
    TOO_DEEP,
    BadPayload,
    Decode,
    ParseFormat,
    without,
)
from penstock.engine.parsing.payload_kinds import CODES, UNKNOWN, codes_of, why_unknown
from penstock.engine.parsing.payload_schemas import NEEDS_SCHEMA, NO_SCHEMAS, PayloadSchemas
from penstock.errors import InvalidInput

_READ_AS: dict[ParseFormat, tuple[ParseFormat, Callable[[Any], bytes]]] = {
    ParseFormat.AVRO: (ParseFormat.MSGPACK, msgspec.msgpack.Encoder().encode),
    ParseFormat.PROTOBUF: (ParseFormat.MSGPACK, msgspec.msgpack.Encoder().encode),
    ParseFormat.CSV: (ParseFormat.JSON, msgspec.json.Encoder().encode),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Payloads in JSON or MessagePack, and which rows of the block they are, ascending.

    Where they are `only_text`, a number is text too: CSV has nothing else.
    """

    form: ParseFormat
    rows: Sequence[int]
    values: pa.Array[Any]
    only_text: bool = False


@dataclass(frozen=True, slots=True)
class Payloads:
    """A block of payloads: their format, the headers of their records, and the schemas that formats need."""

    values: pa.Array[Any]
    form: ParseFormat = ParseFormat.JSON
    schemas: PayloadSchemas = NO_SCHEMAS
    headers: pa.Array[Any] | None = None

    def __post_init__(self) -> None:
        if self.headers is not None and len(self.headers) != len(self.values):
            raise InvalidInput(f"there are {len(self.values)} values, and headers of {len(self.headers)}: give as many")
        self.schemas.check("form", self.form)

    def groups(self) -> tuple[list[Group], dict[int, str]]:
        """The payloads by format, those of one format as they are; and why others cannot be read at all."""
        values, total = self.values, len(self.values)
        if self.form is not ParseFormat.AUTO:
            return self._group(self.form, range(total), values)
        codes = codes_of(values, self.headers)
        if not total or codes.count(codes[0]) == total != codes.count(UNKNOWN):  # counted many times quicker than a set
            return self._group(CODES[codes[0]] if total else ParseFormat.JSON, range(total), values)
        groups: list[Group] = []
        bad: dict[int, str] = {}
        for code in sorted(set(codes)):
            rows = [row for row, found in enumerate(codes) if found == code]
            if code == UNKNOWN:
                bad.update((row, why_unknown(values[row].as_py())) for row in rows)
                continue
            more, wrong = self._group(CODES[code], rows, values.take(pa.array(rows, pa.int64())))
            groups += more
            bad.update(wrong)
        return groups, bad

    def _group(
        self, form: ParseFormat, rows: Sequence[int], values: pa.Array[Any]
    ) -> tuple[list[Group], dict[int, str]]:
        if form not in _READ_AS:
            return [Group(form, rows, values)], {}
        if not self.schemas.has(form):
            why = f"the content-type says {form}, and there is no schema for it: {NEEDS_SCHEMA[form]}"
            return [], dict.fromkeys(rows, why)
        read_as, encode = _READ_AS[form]
        encoded, bad = _transcoded(values, self.schemas.decoder(form), encode)
        kept = without(rows, bad) if bad else rows
        return [Group(read_as, kept, encoded, form is ParseFormat.CSV)], {rows[at]: why for at, why in bad.items()}


def _transcoded(
    values: pa.Array[Any], decode: Decode, encode: Callable[[Any], bytes]
) -> tuple[pa.Array[Any], dict[int, str]]:
    encoded: list[bytes] = []
    bad: dict[int, str] = {}
    for row, payload in enumerate(cast("list[bytes]", values.to_pylist())):
        try:
            encoded.append(encode(decode(payload)))
        except BadPayload as why:
            bad[row] = str(why)
        except RecursionError:
            bad[row] = TOO_DEEP
        except (ValueError, OverflowError) as error:  # text with half of a surrogate pair; a number of no format
            bad[row] = str(error)
    return pa.array(encoded, pa.binary()), bad
