"""Protobuf payloads: one message each, of a type that a descriptor set has.

Values are those of protobuf's JSON form, but numbers stay numbers, bytes are binary, and a `Timestamp` is one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from penstock.engine.parsing.payload_format import BadPayload
from penstock.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = "Protobuf payloads need the extra `protobuf`: pip install 'penstock[protobuf]'"


class ProtobufDecoder:
    """Reads payloads that are messages of one type."""

    def __init__(self, descriptors: bytes, name: str) -> None:
        self._type = message_type(descriptors, name)

    def __call__(self, payload: bytes) -> dict[str, Any]:
        """The fields of a message, by name. Raises `BadPayload`.

        A payload without bytes is a message in which every field has its default.
        """
        from google.protobuf.message import DecodeError

        try:
            return _of_fields(self._type.FromString(payload))
        except DecodeError:
            raise BadPayload(f"this is no Protobuf message of the type {self._type.DESCRIPTOR.full_name}") from None
        except UnicodeDecodeError:
            raise BadPayload("not valid UTF-8") from None
        except OverflowError:
            raise BadPayload("a Timestamp or a Duration is out of range") from None


def descriptors_of(message: object) -> tuple[bytes, str]:
    """The descriptor set that a message class was made from, with all that it imports, and the name of its type."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
    except ImportError as error:
        raise InvalidInput(_MISSING) from error
    descriptor: Any = getattr(message, "DESCRIPTOR", None)
    if not isinstance(message, type) or not hasattr(descriptor, "fields_by_name"):
        raise InvalidInput(f"protobuf takes a message class, or a ProtobufMessage, not {message!r}")
    files: dict[str, Any] = {}

    def add(file: Any) -> None:  # what a file imports comes before it
        if file.name not in files:
            for needed in file.dependencies:
                add(needed)
            files[file.name] = file

    add(descriptor.file)
    found = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(found.file.add())
    return found.SerializeToString(deterministic=True), descriptor.full_name


@lru_cache(maxsize=16)
def message_type(descriptors: bytes, name: str) -> Any:
    """The class of a message. Raises `InvalidInput` where the set does not have it, and without the extra."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise InvalidInput(_MISSING) from error
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise InvalidInput(
            "the Protobuf descriptor set is none: write it with protoc --include_imports --descriptor_set_out"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"the Protobuf descriptor set has no whole message type {name!r}: {error}. Write it with protoc "
            "--include_imports"
        ) from error


def _of_fields(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value, of_value = getattr(message, field.name), _reader(field)
        if _is_map(field):
            of_item = _reader(field.message_type.fields_by_name["value"])
            found[field.name] = {_key(key): of_item(value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [of_value(each) for each in value]
        else:
            found[field.name] = of_value(value)
    return found


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reader(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _message
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _message(message: Any) -> Any:
    name = message.DESCRIPTOR.full_name
    read = _WELL_KNOWN.get(name)
    if read is not None:
        return read(message)
    if name.startswith("google.protobuf.") and name.endswith("Value"):  # StringValue, Int64Value, ...
        return message.value
    return _of_fields(message)


def _value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    value = getattr(message, kind)
    return _message(value) if kind in ("struct_value", "list_value") else value


_WELL_KNOWN: dict[str, Callable[[Any], Any]] = {
    "google.protobuf.Timestamp": lambda at: _EPOCH + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000),
    "google.protobuf.Duration": lambda length: length.ToJsonString(),
    "google.protobuf.Struct": lambda found: {key: _value(found.fields[key]) for key in found.fields},
    "google.protobuf.Value": _value,
    "google.protobuf.ListValue": lambda found: [_value(each) for each in found.values],
    "google.protobuf.FieldMask": lambda mask: ",".join(mask.paths),
}
