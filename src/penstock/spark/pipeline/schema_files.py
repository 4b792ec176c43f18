"""The schemas of payloads that a pipeline file names: files beside it, and the columns of CSV."""

from __future__ import annotations

import os
from typing import Any

from penstock.engine import CsvColumns, PayloadSchemas, ProtobufMessage
from penstock.errors import InvalidInput


def schemas_in(parse: dict[str, Any], folder: str) -> dict[str, PayloadSchemas]:
    """Take the keys about schemas out of the table `[parse]`; what `Pipeline.parse` gets for them, nothing for none.

    Paths are relative to the folder of the pipeline file. Raises `InvalidInput` for a file that cannot be read, and for
    keys that do not go together.
    """
    avro, descriptors, message, names, delimiter = (
        parse.pop(key)
        for key in ("avro_schema", "protobuf_descriptors", "protobuf_message", "csv_columns", "csv_delimiter")
    )
    if (descriptors is None) != (message is None):
        raise InvalidInput("parse.protobuf_descriptors and parse.protobuf_message go together: give both")
    if names is None and delimiter != ",":
        raise InvalidInput("parse.csv_delimiter is between the columns of CSV: give parse.csv_columns too")
    if avro is None and descriptors is None and names is None:
        return {}
    schemas = PayloadSchemas(
        avro=None if avro is None else _text(_read("avro_schema", folder, avro), avro),
        protobuf=None
        if descriptors is None
        else ProtobufMessage(_read("protobuf_descriptors", folder, descriptors), message),
        csv=None if names is None else CsvColumns(names, delimiter),
    )
    return {"payload_schemas": schemas}


def _read(key: str, folder: str, path: str) -> bytes:
    try:
        with open(os.path.join(folder, path), "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidInput(f"parse.{key} names the file {path}, which cannot be read: {error.strerror}") from error


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"parse.avro_schema names the file {path}, which is no UTF-8") from error
