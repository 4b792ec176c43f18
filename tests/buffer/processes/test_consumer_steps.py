"""A consumer that dies at any step: what was acked durably is never delivered again, everything else is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.buffer import Consumer, Manifest, Producer, ProducerConfig
from penstock.errors import InvalidInput
from tests.buffer.processes.stop_points import (
    ACKED,
    MANIFEST_NOT_WRITTEN,
    MANIFEST_WRITTEN,
    Stop,
    ack_one_by_one_and_stop,
    consume_and_stop,
)
from tests.support.processes import Start

FETCHED = Stop("after", "get", ".batch")
ALL = [0, 1, 2]


@dataclass(frozen=True)
class Death:
    """Where a consumer dies, which may start after an ack and acks the next batch durably or not.

    After its death the manifest has this `epoch`, and still has the sequences `kept`.
    """

    stop: Stop
    epoch: int
    kept: list[int]
    last_acked: int | None = None
    through: bool = True

    def __str__(self) -> str:
        return f"{self.stop}, from {self.last_acked}{', through' if self.through else ''}"


DEATHS = [
    Death(MANIFEST_NOT_WRITTEN, 0, ALL),
    Death(MANIFEST_WRITTEN, 1, ALL),
    Death(FETCHED, 1, ALL),
    Death(ACKED, 1, ALL, through=False),
    Death(replace(MANIFEST_NOT_WRITTEN, occurrence=2), 1, ALL),
    Death(replace(MANIFEST_WRITTEN, occurrence=2), 1, [1, 2]),
    Death(ACKED, 1, [1, 2]),
    # It starts after an ack that its caller remembers: the claim of the epoch dequeues that too.
    Death(MANIFEST_NOT_WRITTEN, 0, ALL, last_acked=0),
    Death(MANIFEST_WRITTEN, 1, [1, 2], last_acked=0),
    Death(FETCHED, 1, [1, 2], last_acked=0),
    Death(ACKED, 1, [1, 2], last_acked=0, through=False),
    Death(replace(MANIFEST_WRITTEN, occurrence=2), 1, [2], last_acked=0),
]


ACK_WRITTEN_NOT_RETURNED = DEATHS[-1]
QUICK = [DEATHS[1], DEATHS[5], DEATHS[8], ACK_WRITTEN_NOT_RETURNED]  # each changes the manifest


def produce(root: Path, count: int) -> None:
    """Produce `count` batches of one entry."""
    with Producer(root, ProducerConfig(flush_size_bytes=1)) as producer:
        for sequence in range(count):
            producer.produce(b"%d" % sequence)


@pytest.fixture(
    params=[pytest.param(death, marks=[pytest.mark.slow] * (death not in QUICK)) for death in DEATHS], ids=str
)
def death(request: pytest.FixtureRequest, tmp_path: Path, start: Start) -> Death:
    """Three entries, and a consumer that died over them."""
    death: Death = request.param
    produce(tmp_path, len(ALL))
    victim = start(consume_and_stop, str(tmp_path), death.last_acked, death.through, death.stop)
    assert victim.hear() == death.stop
    victim.kill()
    return death


def drain(root: Path, last_acked: int | None) -> list[tuple[int, list[bytes]]]:
    with Consumer(root, last_acked_sequence=last_acked) as consumer:
        return [(batch.sequence, batch.entries) for batch in consumer]


def test_the_next_consumer_claims_the_next_epoch_and_reads_everything_that_was_not_acked_durably(
    death: Death, tmp_path: Path
) -> None:
    manifest = Manifest.read(tmp_path)
    assert (manifest.epoch, [entry.sequence for entry in manifest.entries]) == (death.epoch, death.kept)

    assert drain(tmp_path, None) == [(sequence, [b"%d" % sequence]) for sequence in death.kept]
    assert Manifest.read(tmp_path).epoch == death.epoch + 1


def test_the_next_consumer_reads_nothing_that_its_caller_knows_to_be_acked(death: Death, tmp_path: Path) -> None:
    # Where the ack had returned, the caller remembers it, durable or not.
    first = 0 if death.last_acked is None else death.last_acked + 1
    knows = first if death.stop == ACKED else max(death.kept[0] - 1, first - 1)
    remembered = knows if knows >= 0 else None

    assert drain(tmp_path, remembered) == [(sequence, [b"%d" % sequence]) for sequence in range(knows + 1, 3)]


@pytest.mark.parametrize("death", [ACK_WRITTEN_NOT_RETURNED], indirect=True, ids=str)
def test_a_caller_that_does_not_know_of_an_ack_that_was_written_is_refused(death: Death, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"last_acked_sequence 0 .* is 2;"):
        Consumer(tmp_path, last_acked_sequence=0)


@pytest.mark.parametrize(("acks", "first_kept"), [(99, 0), (100, 100), (199, 100), (200, 200)])
def test_acks_in_memory_are_written_with_every_hundredth(
    acks: int, first_kept: int, tmp_path: Path, start: Start
) -> None:
    produce(tmp_path, 201)
    victim = start(ack_one_by_one_and_stop, str(tmp_path), acks)
    assert victim.hear() == ACKED
    victim.kill()

    assert Manifest.read(tmp_path).entries[0].sequence == first_kept
