"""Which blocks a table has: the last compaction, and the blocks that came after those it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.spark.tables.contract import Position
from penstock.spark.tables.parquet.commits import BlockCommit, generation_of, query_and_slot, slot_of


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as it was when it was looked at. `names` are those of blocks that no compaction stands for."""

    compacted: BlockCommit | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, compacted: BlockCommit | None, names: Iterable[str]) -> TableState:
        """The state of a table that has objects or directories of these names."""
        live = (name for name in names if generation_of(name) is None and not is_covered(name, compacted))
        return cls(compacted, tuple(sorted(live)))

    @property
    def generation(self) -> int:
        """How many compactions there were."""
        return 0 if self.compacted is None else generation_of(self.compacted.block) or 0

    def last_slot(self, query: str) -> int:
        """The last slot of a query; -1 if it has none."""
        kept = None if self.compacted is None else self.compacted.positions.get(query)
        slots = (slot for name in self.names if (slot := slot_of(name, query)) is not None)
        return max(slots, default=-1 if kept is None else kept.slot)

    def kept_position(self, query: str) -> Position | None:
        """What a compaction has kept of a query."""
        kept = None if self.compacted is None else self.compacted.positions.get(query)
        return None if kept is None else kept.position()

    def queries(self) -> Iterator[str]:
        """Every query that has blocks in the table."""
        kept = () if self.compacted is None else self.compacted.positions
        yield from sorted({*kept, *(found[0] for name in self.names if (found := query_and_slot(name)))})


def is_covered(name: str, compacted: BlockCommit | None) -> bool:
    """Whether a compaction stands for the slot in the name of a block."""
    found = query_and_slot(name)
    if compacted is None or found is None:
        return False
    kept = compacted.positions.get(found[0])
    return kept is not None and found[1] <= kept.slot


def is_last_of(commit: BlockCommit, compacted: BlockCommit | None) -> bool:
    """Whether a compaction stands for this very commit, as the last of its query."""
    found = query_and_slot(commit.block)
    kept = None if compacted is None or found is None else compacted.positions.get(found[0])
    return kept is not None and found is not None and (kept.slot, kept.nonce) == (found[1], commit.nonce)
