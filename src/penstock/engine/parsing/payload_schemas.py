"""`PayloadSchemas`: what formats need to know of payloads that do not say it themselves. It travels to executors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from penstock.core import as_word
from penstock.engine.parsing.avro_payloads import AvroDecoder, checked_avro_schema
from penstock.engine.parsing.csv_payloads import CsvDecoder
from penstock.engine.parsing.payload_format import Decode, ParseFormat
from penstock.engine.parsing.protobuf_payloads import ProtobufDecoder, descriptors_of, message_type
from penstock.errors import InvalidInput

NEEDS_SCHEMA: dict[ParseFormat, str] = {
    ParseFormat.AVRO: "PayloadSchemas(avro=...)",
    ParseFormat.PROTOBUF: "PayloadSchemas(protobuf=...)",
    ParseFormat.CSV: "PayloadSchemas(csv=[...])",
}
"""The formats that cannot be read without a schema, and how it is given."""


@dataclass(frozen=True, slots=True)
class ProtobufMessage:
    """A message type: a serialised `FileDescriptorSet` with all that is imported, and the type's full name.

    `protoc --include_imports --descriptor_set_out=events.desc events.proto` writes one. Raises `InvalidInput` where
    the type is not there, and without the extra `protobuf`.
    """

    descriptors: bytes
    name: str

    def __post_init__(self) -> None:
        given: tuple[object, object] = (self.descriptors, self.name)
        if not isinstance(given[0], bytes) or not isinstance(given[1], str):
            raise InvalidInput("a ProtobufMessage has the bytes of a descriptor set, and the name of a message type")
        message_type(self.descriptors, self.name)

    def __repr__(self) -> str:
        return f"ProtobufMessage({self.name!r})"


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The names of the fields of a CSV line, in their order, and what is between them.

    >>> CsvColumns(["id", "name"], delimiter=";")
    CsvColumns(names=('id', 'name'), delimiter=';')
    """

    names: Sequence[str]
    delimiter: str = ","

    def __post_init__(self) -> None:
        names: object = self.names
        if isinstance(names, str | bytes) or not isinstance(names, Sequence):
            raise InvalidInput(f"csv must be a list of column names such as ['id', 'event'], not {names!r}")
        if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise InvalidInput(f"csv must name at least one column, and none of them twice, not {list(names)!r}")
        object.__setattr__(self, "names", tuple(names))
        mark: object = self.delimiter
        if not isinstance(mark, str) or len(mark) != 1 or mark in '"\r\n':
            raise InvalidInput(f"delimiter must be one character, and no quote or line end, not {mark!r}")


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """The schemas of payloads in Avro, Protobuf and CSV. It can be pickled, and compared.

    `avro` is the writer's schema, as JSON text or as the dict of it; `protobuf` a message class or a `ProtobufMessage`;
    `csv` the names of the columns of a line, or `CsvColumns`. Each may be None: then no payload is read in that format.
    Raises `InvalidInput` for what is no schema, and where the extra (`avro`, `protobuf`) is not installed.

    >>> PayloadSchemas(csv=["id", "event"]).csv
    CsvColumns(names=('id', 'event'), delimiter=',')
    """

    avro: str | Mapping[str, Any] | None = None
    protobuf: ProtobufMessage | type | None = None
    csv: CsvColumns | Sequence[str] | None = None

    def __post_init__(self) -> None:
        avro: object = self.avro
        if avro is not None:
            text = avro if isinstance(avro, str) else _as_json(avro)
            checked_avro_schema(text)
            object.__setattr__(self, "avro", text)
        if self.protobuf is not None and not isinstance(self.protobuf, ProtobufMessage):
            object.__setattr__(self, "protobuf", ProtobufMessage(*descriptors_of(self.protobuf)))
        if self.csv is not None and not isinstance(self.csv, CsvColumns):
            object.__setattr__(self, "csv", CsvColumns(self.csv))

    def has(self, form: ParseFormat) -> bool:
        """Whether payloads of a format can be read with what is here."""
        return form not in NEEDS_SCHEMA or getattr(self, form.value) is not None

    def check(self, field: str, form: str) -> None:
        """Raise `InvalidInput` where payloads of this format need a schema that is not here."""
        checked = as_word(field, ParseFormat, form)
        if not self.has(checked):
            raise InvalidInput(f"{field} {checked.value!r} needs a schema of the payloads: {NEEDS_SCHEMA[checked]}")

    def decoder(self, form: ParseFormat) -> Decode:
        """A decoder of payloads of a format, for which there is a schema, into dicts of plain values."""
        return _decoder(self, form)


NO_SCHEMAS = PayloadSchemas()


def check_schemas(field: str, given: object) -> None:
    """Raise `InvalidInput` for what are no `PayloadSchemas`."""
    if not isinstance(given, PayloadSchemas):
        raise InvalidInput(f"{field} must be PayloadSchemas, such as PayloadSchemas(avro=...), not {given!r}")


def format_to_parse(parse: object, form: str) -> ParseFormat | None:
    """The format of an engine's run: `form` where `parse` is True, `json-values` where it is that, None for False."""
    if parse is True or parse is False:
        return ParseFormat(form) if parse else None
    if parse == ParseFormat.JSON_VALUES:
        return ParseFormat.JSON_VALUES
    raise InvalidInput(f"parse must be True, False or 'json-values', not {parse!r}")


@lru_cache(maxsize=16)
def _decoder(schemas: PayloadSchemas, form: ParseFormat) -> Decode:
    if form is ParseFormat.AVRO and isinstance(schemas.avro, str):
        return AvroDecoder(schemas.avro)
    if form is ParseFormat.PROTOBUF and isinstance(schemas.protobuf, ProtobufMessage):
        return ProtobufDecoder(schemas.protobuf.descriptors, schemas.protobuf.name)
    assert form is ParseFormat.CSV and isinstance(schemas.csv, CsvColumns)  # noqa: S101, PT018  `has` was asked
    return CsvDecoder(schemas.csv.names, schemas.csv.delimiter)


def _as_json(schema: object) -> str:
    try:
        return json.dumps(schema, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"avro must be a schema, as JSON text or as the dict of it: {error}") from error
