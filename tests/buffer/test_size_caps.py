"""An object above the size limit is refused before it is read into memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.buffer import Consumer, ConsumerConfig, GarbageCollector, Manifest, Producer
from penstock.errors import CorruptData

TEBIBYTE = 1 << 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A buffer with one batch."""
    produce(tmp_path)
    return tmp_path


def produce(root: Path) -> None:
    """Produce one batch."""
    with Producer(root) as producer:
        producer.produce(b"event").result()


def enlarge(path: Path) -> None:
    """Give a file a size of a tebibyte. It takes no space on disk, but would take that much memory."""
    os.truncate(path, TEBIBYTE)


READS_OF_THE_MANIFEST: dict[str, Callable[[Path], object]] = {
    "consumer": Consumer,
    "producer": produce,
    "collector": lambda root: GarbageCollector(root).collect_once(),
    "Manifest.read": Manifest.read,
}


@pytest.mark.parametrize("read", READS_OF_THE_MANIFEST)
def test_a_manifest_that_is_too_large_is_corrupt(root: Path, read: str) -> None:
    enlarge(root / "ingest" / "manifest")
    with pytest.raises(CorruptData, match=f"'ingest/manifest' .* {TEBIBYTE} bytes"):
        READS_OF_THE_MANIFEST[read](root)


def test_a_batch_that_is_too_large_is_corrupt(root: Path) -> None:
    (batch,) = root.glob("ingest/*.batch")
    enlarge(batch)
    with (
        Consumer(root, ConsumerConfig(gc=False)) as consumer,
        pytest.raises(CorruptData, match=f"sequence 0 .* {TEBIBYTE} bytes"),
    ):
        consumer.next_batch()


def test_an_owner_that_is_too_large_is_corrupt(root: Path) -> None:
    enlarge(root / "ingest" / ".owner")
    with pytest.raises(CorruptData, match=f"owner.* {TEBIBYTE} bytes"):
        GarbageCollector(root).collect_once()
