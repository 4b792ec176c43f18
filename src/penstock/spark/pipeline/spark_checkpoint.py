"""A checkpoint of Spark's, which an earlier Penstock left: how far its query came. It is read once.

```text
metadata          {"id": "<query id>"}
offsets/<batch>   v1, then a line of metadata, then the offset at which the batch ends
commits/<batch>   there when the batch is done
```
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.errors import CorruptData, InvalidInput
from penstock.spark.pipeline.block_plans import SmallFiles
from penstock.spark.tables.contract import BlockId

_READ = "penstock/spark-checkpoint-is-read"


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """Where the query of a checkpoint was: all before `done` is in the sink; `planned` may be, or a part of it."""

    done: int | None
    planned: BlockId | None

    @property
    def end(self) -> int:
        """How far it reaches."""
        return self.planned.end if self.planned is not None else self.done or 0


def read_spark_checkpoint(files: SmallFiles, buffer_id: str, where: str) -> SparkCheckpoint | None:
    """What a checkpoint of Spark's says; None where there is none, or it was read before.

    Raises `InvalidInput` where it is of another buffer, and `CorruptData` for what cannot be read.
    """
    data = files.read("metadata")
    if data is None or files.read(_READ) is not None:
        return None
    batches = sorted(int(name) for name in files.names("offsets") if name.isdecimal())
    if not batches:
        return None
    committed = {int(name) for name in files.names("commits") if name.isdecimal()}
    try:
        query = str(json.loads(data)["id"])
        last = batches[-1]
        end = _offset(files, last)
        start = _offset(files, last - 1) if last > 0 else None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptData(f"the checkpoint {where} cannot be read: {type(error).__name__}: {error}") from error
    for offset in filter(None, (start, end)):
        _check_buffer(offset, buffer_id, where)
    if last in committed:
        return SparkCheckpoint(int(end["sequence"]), None)
    first = None if start is None else int(start["sequence"])
    # Where block 0 began is not in the checkpoint: at the group's frontier, which has not moved since.
    planned = BlockId(query, first if first is not None else 0, int(end["sequence"]), number=last)
    return SparkCheckpoint(first, planned)


def mark_as_read(files: SmallFiles) -> None:
    """Note that a checkpoint of Spark's counts no more: from here on the table says how far it is."""
    files.write_new(_READ, b"The position of this checkpoint was taken over.\n")


def _offset(files: SmallFiles, batch: int) -> dict[str, Any]:
    data = files.read(f"offsets/{batch}")
    if data is None:
        raise KeyError(f"offsets/{batch} is missing")
    offset: dict[str, Any] = json.loads(data.decode().splitlines()[2])
    return offset


def _check_buffer(offset: dict[str, Any], buffer_id: str, where: str) -> None:
    found = offset.get("buffer")
    if found != buffer_id:
        which = "no buffer, as an earlier Penstock wrote it" if found is None else f"the buffer {found}"
        raise InvalidInput(
            f"the checkpoint {where} is of {which}, and the source is the buffer {buffer_id}: another one, or one that "
            "was deleted and created again. Nothing is read or acked; use a new checkpoint for this buffer"
        )
