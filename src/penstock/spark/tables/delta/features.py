"""What a Delta table asks of its writers and readers, and what of that Penstock does. The rest is refused, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from deltalake.table import ProtocolVersions

from penstock.errors import InvalidInput

# Features that change nothing here, and those that change something only by a property that is looked at below.
_KNOWN = {"appendOnly", "invariants", "timestampNtz", "checkConstraints", "generatedColumns", "changeDataFeed"}
_KNOWN |= {"v2Checkpoint", "vacuumProtocolCheck"}
_KNOWN |= {"variantType"}  # which delta-rs adds to tables that have no such column
_IN_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "an identity",
    "CURRENT_DEFAULT": "a default",
}
_MIN_RETENTION_DAYS = 30.0
_RETENTION = "delta.setTransactionRetentionDuration"
_LEGACY_READER, _LEGACY_WRITER = 1, 4  # those above have column mapping, or identities
_DAYS = {
    "nanosecond": 1e-9 / 86400,
    "microsecond": 1e-6 / 86400,
    "millisecond": 1e-3 / 86400,
    "second": 1 / 86400,
    "minute": 1 / 1440,
    "hour": 1 / 24,
    "day": 1.0,
    "week": 7.0,
}


def check_writable(
    protocol: ProtocolVersions,
    configuration: Mapping[str, str],
    columns: Sequence[tuple[str, Mapping[str, object]]],
    url: str,
    *,
    merges: bool,
) -> None:
    """Raise `InvalidInput` for a table that Penstock cannot write right. `columns` are names and their metadata."""
    check_readable(protocol, configuration, url)
    unknown = sorted(set(protocol.writer_features or ()) - _KNOWN)
    if unknown or (protocol.min_writer_version > _LEGACY_WRITER and protocol.writer_features is None):
        what = unknown or [f"writer version {protocol.min_writer_version}"]
        raise InvalidInput(f"the table {url} has {', '.join(what)}, which Penstock cannot write: use another table")
    constraints = [name for name in configuration if name.startswith("delta.constraints.")]
    if constraints:
        raise InvalidInput(
            f"the table {url} has constraints ({', '.join(constraints)}), which nothing here would check"
        )
    for name, metadata in columns:
        for key, meaning in _IN_COLUMNS.items():
            if key in metadata:
                raise InvalidInput(f"the column {name!r} of the table {url} has {meaning}, which Penstock cannot write")
    if merges and configuration.get("delta.appendOnly", "false").lower() == "true":
        raise InvalidInput(f"the table {url} is append-only (delta.appendOnly), and merge_on changes rows")
    if merges and configuration.get("delta.enableChangeDataFeed", "false").lower() == "true":
        raise InvalidInput(f"the table {url} has a change data feed, which merge_on does not write")
    _check_retention(configuration, url)


def check_readable(protocol: ProtocolVersions, configuration: Mapping[str, str], url: str) -> None:
    """Raise `InvalidInput` for a table whose files do not have its rows as they are."""
    unknown = sorted(set(protocol.reader_features or ()) - _KNOWN)
    if unknown or (protocol.min_reader_version > _LEGACY_READER and protocol.reader_features is None):
        what = unknown or [f"reader version {protocol.min_reader_version}"]
        raise InvalidInput(
            f"the table {url} has {', '.join(what)}, which Penstock cannot read: read it with an engine that can"
        )
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        raise InvalidInput(f"the table {url} maps its columns to other names, which Penstock cannot do")


def _check_retention(configuration: Mapping[str, str], url: str) -> None:
    """How long Delta remembers a transaction is how long a pipeline may rest: then its blocks would be new again."""
    given = configuration.get(_RETENTION)
    if given is None:
        return
    parts = re.findall(r"([\d.]+)\s+([a-z]+?)s?\b", given.lower())
    days = sum(float(number) * _DAYS.get(unit, 0.0) for number, unit in parts)
    if not parts or days < _MIN_RETENTION_DAYS:
        raise InvalidInput(
            f"the table {url} has {_RETENTION} = {given!r}: it would forget how far a pipeline is that rests for as "
            f"long. Set it to at least {_MIN_RETENTION_DAYS:.0f} days, or remove it"
        )
