"""How far queries are in a table: properties of the table, which are set in the commit of a block's rows.

`penstock.<query>` has the block's version, and `penstock.<query>:end` where it began and ended. A query's name has no
colon, so that no query's property is another's end. Properties stay when snapshots expire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from penstock.errors import CorruptData
from penstock.spark.tables.contract import BlockId, Position, Restored, accepted_restore

_PREFIX = "penstock."
_END = ":end"
_COMMIT = "penstock.commit"
_BLOCK = "penstock.block"
_BLOCK_END = "penstock.end"


@dataclass(frozen=True, slots=True)
class BlockMark:
    """What the commit of a block leaves in a table, beside its rows. `commit` tells one try to stage it from others."""

    block: BlockId
    rows: int
    commit: str

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties that move its position."""
        end = {
            "first": self.block.first,
            "end": self.block.end,
            "last": self.block.last,
            "rows": self.rows,
            "commit": self.commit,
        }
        name = _PREFIX + self.block.query
        return {name: str(self.block.version), name + _END: json.dumps(end)}

    @property
    def summary(self) -> dict[str, str]:
        """What the snapshot's summary says."""
        return {_BLOCK: self.block.name, _BLOCK_END: str(self.block.end), _COMMIT: self.commit}

    def is_in(self, metadata: TableMetadata) -> bool:
        """Whether this very try is committed, be there blocks after it."""
        end = metadata.properties.get(_PREFIX + self.block.query + _END)
        if end is not None and _decoded(end, self.block.query).get("commit") == self.commit:
            return True
        return any(_commit_in(snapshot) == self.commit for snapshot in reversed(metadata.snapshots))


def version_in(properties: Mapping[str, str], query: str) -> int | None:
    """The version of a query's last block in a table."""
    text = properties.get(_PREFIX + query)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise CorruptData(f"the table's property {_PREFIX + query} is no number: {text!r}") from None


def position_in(properties: Mapping[str, str], query: str) -> Position | None:
    """How far a query is in a table."""
    version = version_in(properties, query)
    if version is None:
        return None
    end = _decoded(properties.get(_PREFIX + query + _END, "{}"), query)
    last, rows, first = end.get("last"), end.get("rows"), end.get("first")
    found = end.get("end")
    return Position(
        end=found if isinstance(found, int) else version + 1,
        first=first if isinstance(first, int) else None,
        last=last if isinstance(last, str) and last else None,
        rows=rows if isinstance(rows, int) else None,
    )


def restored_in(metadata: TableMetadata, query: str) -> Restored | None:
    """What of a query's blocks is gone because the table was rolled back to an older snapshot; None if nothing is.

    Properties stay where they were then. What is known of is a last block whose snapshot is still there.
    """
    end = _decoded(metadata.properties.get(_PREFIX + query + _END, "{}"), query)
    blocks = {one.snapshot_id: found for one in metadata.snapshots if (found := _block_in(one, query))}
    commit = end.get("commit")
    last = next((one for one in metadata.snapshots if commit and _commit_in(one) == commit), None)
    if last is None:
        return None
    current = metadata.current_snapshot()
    while current is not None and current.snapshot_id not in blocks:
        if current.snapshot_id == last.snapshot_id:
            return None
        above = current.parent_snapshot_id
        current = None if above is None else metadata.snapshot_by_id(above)
        if above is not None and current is None:
            return None  # it is expired: what was before it is not known
    if current is not None and current.snapshot_id == last.snapshot_id:
        return None
    left = 0 if current is None else blocks[current.snapshot_id][1]
    gone_from = min((first for first, upto in blocks.values() if left <= first < upto), default=left)
    accepted = metadata.properties.get(accepted_restore(query))
    return Restored(gone_from, is_accepted=accepted is not None and accepted == str(end.get("end")))


def _commit_in(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(_COMMIT)


def _block_in(snapshot: Snapshot, query: str) -> tuple[int, int] | None:
    """Where the block of a snapshot begins and ends, if it is one of the query's."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    name, _, first = summary.get(_BLOCK, "").rpartition("-")
    end = summary.get(_BLOCK_END, "")
    return (int(first), int(end)) if name == query and end.isdecimal() else None


def positions_in(properties: Mapping[str, str]) -> dict[str, Position]:
    """How far each query is in a table."""
    queries = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    found = {query: position_in(properties, query) for query in queries if ":" not in query}
    return {query: position for query, position in found.items() if position is not None}


def _decoded(text: str, query: str) -> dict[str, object]:
    try:
        end = json.loads(text)
    except ValueError:
        end = None
    if not isinstance(end, dict):
        raise CorruptData(f"the table's property {_PREFIX + query + _END} cannot be read: {text!r}")
    return end
