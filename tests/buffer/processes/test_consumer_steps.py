"""A consumer that dies at any step: what was acked for good never comes again, and everything else does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.buffer import Consumer, Manifest, Producer, ProducerConfig
from penstock.errors import InvalidInput
from tests.buffer.processes.stopping import (
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
    """Where a consumer dies, which may start after an ack and acks the next one durably or not; and what is left.

    `epoch` is the manifest's then, `kept` the sequences that it still has.
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
    # It starts after an ack that its caller remembers: that is dequeued together with taking the epoch.
    Death(MANIFEST_NOT_WRITTEN, 0, ALL, last_acked=0),
    Death(MANIFEST_WRITTEN, 1, [1, 2], last_acked=0),
    Death(FETCHED, 1, [1, 2], last_acked=0),
    Death(ACKED, 1, [1, 2], last_acked=0, through=False),
    Death(replace(MANIFEST_WRITTEN, occurrence=2), 1, [2], last_acked=0),
]


ACK_WRITTEN_UNHEARD = DEATHS[-1]


def produce(root: Path, count: int) -> None:
    """Put so many batches of one entry into the buffer."""
    with Producer(root, ProducerConfig(flush_size_bytes=1)) as producer:
        for sequence in range(count):
            producer.produce(b"%d" % sequence)


@pytest.fixture(params=DEATHS, ids=str)
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


def test_the_manifest_is_as_the_design_note_says(death: Death, tmp_path: Path) -> None:
    left = Manifest.read(tmp_path)

    assert (left.epoch, [entry.sequence for entry in left.entries]) == (death.epoch, death.kept)


def test_the_next_consumer_gets_everything_that_was_not_acked_for_good(death: Death, tmp_path: Path) -> None:
    assert drain(tmp_path, None) == [(sequence, [b"%d" % sequence]) for sequence in death.kept]


def test_the_next_consumer_has_an_epoch_of_its_own(death: Death, tmp_path: Path) -> None:
    with Consumer(tmp_path):
        assert Manifest.read(tmp_path).epoch == death.epoch + 1


def test_the_next_consumer_gets_nothing_that_its_caller_knows_to_be_acked(death: Death, tmp_path: Path) -> None:
    # Whoever stopped after its ack had returned could say so: the caller remembers it, durable or not.
    first = 0 if death.last_acked is None else death.last_acked + 1
    knows = first if death.stop == ACKED else max(death.kept[0] - 1, first - 1)
    remembered = knows if knows >= 0 else None

    assert drain(tmp_path, remembered) == [(sequence, [b"%d" % sequence]) for sequence in range(knows + 1, 3)]


@pytest.mark.parametrize("death", [ACK_WRITTEN_UNHEARD], indirect=True, ids=str)
def test_a_caller_that_has_not_heard_of_an_ack_that_was_written_is_told_so(death: Death, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"last_acked_sequence 0 .* is 2;"):
        Consumer(tmp_path, last_acked_sequence=0)


@pytest.mark.parametrize(("acks", "first_kept"), [(99, 0), (100, 100), (101, 100), (199, 100), (200, 200)])
def test_acks_in_memory_are_written_with_every_hundredth(
    acks: int, first_kept: int, tmp_path: Path, start: Start
) -> None:
    produce(tmp_path, 201)
    victim = start(ack_one_by_one_and_stop, str(tmp_path), acks)
    assert victim.hear() == ACKED
    victim.kill()

    assert Manifest.read(tmp_path).entries[0].sequence == first_kept
