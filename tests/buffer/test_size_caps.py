"""An object that is larger than it can be is refused before it is in memory."""

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


def blow_up(path: Path) -> None:
    """Let a file claim a tebibyte. It occupies nothing, but who reads it needs that much memory."""
    os.truncate(path, TEBIBYTE)


READS_OF_THE_MANIFEST: dict[str, Callable[[Path], object]] = {
    "consumer": Consumer,
    "producer": produce,
    "collector": lambda root: GarbageCollector(root).collect_once(),
    "Manifest.read": Manifest.read,
}


@pytest.mark.parametrize("read", READS_OF_THE_MANIFEST)
def test_a_manifest_that_is_too_large_is_corrupt(root: Path, read: str) -> None:
    blow_up(root / "ingest" / "manifest")
    with pytest.raises(CorruptData, match=f"'ingest/manifest' .* {TEBIBYTE} bytes"):
        READS_OF_THE_MANIFEST[read](root)


def test_a_batch_that_is_too_large_is_corrupt(root: Path) -> None:
    (batch,) = root.glob("ingest/*.batch")
    blow_up(batch)
    with (
        Consumer(root, ConsumerConfig(gc=False)) as consumer,
        pytest.raises(CorruptData, match=f"sequence 0 .* {TEBIBYTE} bytes"),
    ):
        consumer.next_batch()


def test_an_owner_that_is_too_large_is_corrupt(root: Path) -> None:
    blow_up(root / "ingest" / ".owner")
    with pytest.raises(CorruptData, match=f"owner.* {TEBIBYTE} bytes"):
        GarbageCollector(root).collect_once()
