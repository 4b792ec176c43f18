"""The schemas of payloads, as the options of a read have them: in text."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from penstock.engine import CsvColumns, ParseFormat, PayloadSchemas, ProtobufMessage
from penstock.errors import InvalidInput

_OPTION_OF = {
    ParseFormat.AVRO: "avroSchema",
    ParseFormat.PROTOBUF: "protobufDescriptors and protobufMessage",
    ParseFormat.CSV: "csvColumns",
}


@dataclass(frozen=True)
class SchemaTexts:
    """The texts of these options; None where one is not given.

    `protobuf_descriptors` is a descriptor set in base64, `csv_columns` are names with commas between them.
    """

    avro_schema: str | None = None
    protobuf_descriptors: str | None = None
    protobuf_message: str | None = None
    csv_columns: str | None = None
    csv_delimiter: str | None = None

    def read(self) -> PayloadSchemas:
        """The schemas. Raises `InvalidInput` naming the option."""
        if (self.protobuf_descriptors is None) != (self.protobuf_message is None):
            raise InvalidInput("protobufDescriptors and protobufMessage go together: give both")
        if self.csv_delimiter is not None and self.csv_columns is None:
            raise InvalidInput("csvDelimiter is between the columns of CSV: give csvColumns too")
        protobuf = None
        if self.protobuf_descriptors is not None and self.protobuf_message is not None:
            protobuf = ProtobufMessage(_from_base64(self.protobuf_descriptors), self.protobuf_message)
        csv = None
        if self.csv_columns is not None:
            names = [name.strip() for name in self.csv_columns.split(",")]
            csv = CsvColumns(names, "," if self.csv_delimiter is None else self.csv_delimiter)
        return PayloadSchemas(self.avro_schema, protobuf, csv)


def check_format(schemas: PayloadSchemas, form: ParseFormat) -> None:
    """Raise `InvalidInput` where payloads of this format need a schema that is not given."""
    if not schemas.has(form):
        raise InvalidInput(f"format {form} needs a schema of the payloads: give {_OPTION_OF[form]}")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidInput(
            "protobufDescriptors must be a descriptor set in base64: what protoc --include_imports "
            f"--descriptor_set_out writes, encoded ({error})"
        ) from error
