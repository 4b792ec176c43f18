"""A process that joins a group with a memory limit, and then works off a backlog; see `test_out_of_memory`."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # before it is under the limit, this process imports nothing that takes memory
    from penstock.engine import WorkBatch


def main(group: str, buffer: str, kind: str, regulated: str, rows: str) -> None:
    """Join the group, drain the buffer, and print how many rows came, in their order and once each."""
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    from penstock.buffer import Consumer, ConsumerConfig
    from penstock.engine import BatchEngine, BufferReceiver, SelfRegulation
    from tests.support.memory_readings import reading

    count = RowCount()
    engine = BatchEngine(regulation=SelfRegulation() if regulated == "regulated" else None)
    with (
        Consumer(buffer, ConsumerConfig(gc=False)) as consumer,
        BufferReceiver(consumer) as receiver,
    ):
        engine.run(receiver, {"columns": in_columns, "objects": in_objects}[kind], count, until_idle=True)
    report = {
        "rows": count.rows,
        "in order": count.is_in_order and count.rows == int(rows),
        "leased": engine.guard.current_bytes,
        "limit": engine.guard.limit_bytes,
        "budget": reading("penstock_byte_budget"),
        "pauses": reading("penstock_inbound_pauses_total"),
        "blocks": count.blocks,
    }
    print(json.dumps(report), flush=True)


class RowCount:
    """A sink that checks the number with which each row begins, and keeps nothing."""

    def __init__(self) -> None:
        self.rows = 0
        self.blocks = 0
        self.is_in_order = True

    def __call__(self, batch: WorkBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = pc.binary_slice(batch.arrow.column("value"), 0, 12).cast(pa.string()).cast(pa.int64())
        expected = pa.array(range(self.rows, self.rows + len(batch)), pa.int64())
        self.is_in_order = self.is_in_order and numbers.equals(expected)
        self.rows += len(batch)
        self.blocks += 1


def in_columns(batch: WorkBatch) -> WorkBatch:
    """Copy every payload once, in columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    join: Any = pc.binary_join_element_wise  # its stub knows no scalars among columns
    values = join(batch.arrow.column("value"), b"", b"")
    return type(batch)(pa.RecordBatch.from_arrays([values], ["value"]), batch.commit_tokens)


def in_objects(batch: WorkBatch) -> WorkBatch:
    """Create an object for each record, one for its text, and one for its result, as a first version would."""
    from penstock import Record

    texts = [record.value.decode() for record in batch.records]
    return batch.map_records(lambda records: [Record(text.encode(), key=text[:12].encode()) for text in texts])


if __name__ == "__main__":
    main(*sys.argv[1:])
