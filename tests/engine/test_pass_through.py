"""From a buffer to a buffer without an object for a record, where none is asked for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import Consumer, Producer
from penstock.engine import BatchEngine, BufferReceiver, BufferSender, SelfRegulation, WorkBatch
from penstock.records import Record

ROWS = 200_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pass-through")
    with Producer(folder) as producer:
        producer.produce([Record(b"event %06d, and some more of it" % number, key=b"k") for number in range(ROWS)])
    return folder


class Objects:
    """Counts the small objects of this process, at the moments when a block is in hand."""

    def __init__(self) -> None:
        gc.collect()
        self._before = sys.getallocatedblocks()
        self.most = 0

    def look(self) -> None:
        self.most = max(self.most, sys.getallocatedblocks() - self._before)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Objects stay counted until the end of the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run(filled: Path, target: Path, process: Callable[[WorkBatch], WorkBatch], regulated: bool) -> Objects:
    objects = Objects()

    def looking(batch: WorkBatch) -> WorkBatch:
        processed = process(batch)
        objects.look()
        return processed

    engine = BatchEngine(regulation=SelfRegulation() if regulated else None)
    with BufferReceiver(filled) as receiver, BufferSender(target) as sender:

        def sink(batch: WorkBatch) -> None:
            sender.send(batch)
            objects.look()

        engine.run(receiver, looking, sink, commit="sink_managed", until_idle=True)  # it is there for the next test
    return objects


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("regulated", [True, False])
def test_pass_through_creates_no_object_for_a_record(filled: Path, tmp_path: Path, regulated: bool) -> None:
    objects = run(filled, tmp_path, lambda batch: batch, regulated)
    assert objects.most < ROWS / 20
    with Consumer(tmp_path) as consumer:
        rows = [(batch.arrow.num_rows, batch.arrow.schema.names) for batch in consumer]
    assert rows == [(ROWS, ["value", "key"])]


@pytest.mark.usefixtures("no_collection")
def test_records_that_are_asked_for_are_objects(filled: Path, tmp_path: Path) -> None:
    def ask(batch: WorkBatch) -> WorkBatch:
        assert len(batch.records) == ROWS
        return batch

    assert run(filled, tmp_path, ask, True).most > ROWS
