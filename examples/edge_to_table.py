"""From a service's durable queue, through a buffer, into a Parquet file; with what cannot be parsed set aside."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock import DurableEventQueue
from penstock.engine import BatchEngine, BufferReceiver, BufferSender, DeadLetter, DlqPolicy, WorkBatch, columns, ship
from penstock.records import Record


def price(orders: pa.RecordBatch) -> pa.RecordBatch:
    """Add a column; an order of nothing is an error, and becomes a dead letter."""
    rows = orders.to_pylist()
    total = pa.array([row["count"] * row["cents"] for row in rows])
    error = pa.array([None if row["count"] else "an order of nothing" for row in rows], pa.string())
    return orders.append_column("total", total).append_column("_error", error)


def main(root: Path) -> None:
    with DurableEventQueue(root / "outbox") as queue:
        queue.push_many([b'{"count": %d, "cents": 250}' % count for count in range(4)])
        queue.push(b"{this is no JSON")
        print("shipped:", ship(queue, root / "events", until_idle=True).processed)

    tables = list[pa.RecordBatch]()
    with BufferSender(root / "dead-letters") as aside, BufferReceiver(root / "events") as receiver:

        def set_aside(letters: list[DeadLetter]) -> None:
            aside.send([Record(letter.payload, headers=[("reason", letter.reason.encode())]) for letter in letters])
            print("set aside:", [letter.reason for letter in letters])

        def sink(block: WorkBatch) -> None:
            # A block is acked when this returns. After a crash in between it comes again: at least once.
            pq.write_table(pa.Table.from_batches([block.arrow]), root / f"orders-{len(tables)}.parquet")
            tables.append(block.arrow)

        engine = BatchEngine(dlq=DlqPolicy.route(set_aside))
        print(engine.run(receiver, columns(price), sink, parse=True, until_idle=True))
    print("totals:", [row["total"] for table in tables for row in table.to_pylist()])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-example-")))
