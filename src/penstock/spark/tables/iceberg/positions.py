"""How far queries are in a table: properties of the table, which are set in the commit of a block's rows.

`penstock.<query>` has the block's version, and `penstock.<query>:end` where it began and ended. A query's name has no
colon, so that no query's property is another's end. Properties stay when snapshots expire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from penstock.errors import CorruptData
from penstock.spark.tables.contract import BlockId, Position

_PREFIX = "penstock."
_END = ":end"
_COMMIT = "penstock.commit"


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
        return {"penstock.block": self.block.name, _COMMIT: self.commit}

    def is_in(self, metadata: TableMetadata) -> bool:
        """Whether this very try is committed, be there blocks after it."""
        end = metadata.properties.get(_PREFIX + self.block.query + _END)
        if end is not None and _decoded(end, self.block.query).get("commit") == self.commit:
            return True
        return any(
            snapshot.summary is not None and snapshot.summary.additional_properties.get(_COMMIT) == self.commit
            for snapshot in reversed(metadata.snapshots)
        )


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


def positions_in(properties: Mapping[str, str]) -> dict[str, Position]:
    """How far each query is in a table."""
    queries = [name.removeprefix(_PREFIX) for name in properties if name.startswith(_PREFIX)]
    found = {query: position_in(properties, query) for query in queries if not query.endswith(_END)}
    return {query: position for query, position in found.items() if position is not None}


def _decoded(text: str, query: str) -> dict[str, object]:
    try:
        end = json.loads(text)
    except ValueError:
        end = None
    if not isinstance(end, dict):
        raise CorruptData(f"the table's property {_PREFIX + query + _END} cannot be read: {text!r}")
    return end
