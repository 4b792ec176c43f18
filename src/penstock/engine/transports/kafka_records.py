"""Messages of Kafka as records, and records as messages. A message without a value (a tombstone) keeps that."""

from __future__ import annotations

from typing import Any

from penstock.records import Record

TOMBSTONE = "kafka-tombstone"
"""The header of a record whose message had no value: its value is empty. `KafkaSender` makes a null of it again."""

_NO_TIMESTAMP = 0


def record_of(message: Any) -> Record:
    """The record of a message: value, key, headers and timestamp."""
    value, headers = message.value(), [(name, content or b"") for name, content in message.headers() or ()]
    if value is None:
        value, headers = b"", [*headers, (TOMBSTONE, b"")]
    kind, at = message.timestamp()
    return Record(value, message.key(), headers or None, None if kind == _NO_TIMESTAMP else at)


def message_of(record: Record) -> dict[str, Any]:
    """What a producer takes for a record."""
    fields: dict[str, Any] = {"value": record.value, "key": record.key}
    headers = list(record.headers or ())
    if not record.value and (TOMBSTONE, b"") in headers:
        headers.remove((TOMBSTONE, b""))
        fields["value"] = None
    if headers:
        fields["headers"] = headers
    if record.timestamp_ms is not None:
        fields["timestamp"] = record.timestamp_ms
    return fields
