"""Segments that one process copies and another one finds: a metadata log in a directory, and a catalog in each."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
import uuid
from pathlib import Path

from penstock.errors import NotReady
from penstock.metalog import (
    ObjectMetadataLog,
    SegmentCatalog,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)

PARTITIONS = 4
ORDERS = TopicIdPartition(uuid.UUID(int=7), "orders", 0)


def copy_segments(home: Path) -> None:
    """Copy five segments of a hundred records each; the copy of the last one is never finished."""
    with (
        ObjectMetadataLog(home / "log", PARTITIONS) as log,
        SegmentCatalog(log, snapshot_dir=home / "copier") as catalog,
    ):
        catalog.assign(range(PARTITIONS))
        for number in range(5):
            segment = SegmentId(ORDERS, uuid.uuid4())
            first = number * 100
            now = int(time.time() * 1000)
            started = SegmentState.COPY_SEGMENT_STARTED
            catalog.add_segment(SegmentMetadata(segment, first, first + 99, now, 1, now, 1024, started, {0: first}))
            if number < 4:
                catalog.update_segment(SegmentUpdate(segment, now, SegmentState.COPY_SEGMENT_FINISHED, 1))


def find_segments(home: Path) -> None:
    """Find them, with a catalog that has seen nothing yet."""
    with (
        ObjectMetadataLog(home / "log") as log,
        SegmentCatalog(log, snapshot_dir=home / "finder") as catalog,
    ):
        catalog.assign(range(PARTITIONS))
        while True:
            try:
                known = catalog.segments(ORDERS)
                break
            except NotReady:  # it is still reading
                time.sleep(0.01)
        print(f"{len(known)} segments, finished up to offset {catalog.highest_offset(ORDERS, 0)}")
        for offset in (0, 250, 450):
            found = catalog.segment_for(ORDERS, 0, offset)
            print(f"offset {offset}:", f"{found.start_offset} to {found.end_offset}" if found else "nowhere yet")


def main(home: Path) -> None:
    copier = multiprocessing.get_context("spawn").Process(target=copy_segments, args=(home,))
    copier.start()
    copier.join()
    find_segments(home)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-example-")))
