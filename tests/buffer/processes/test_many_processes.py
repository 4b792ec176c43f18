"""Ten producers and a consumer, each a process of its own, on one disk: every entry once, in order, without a gap."""

from __future__ import annotations

from pathlib import Path

from penstock.buffer import Manifest
from tests.buffer.processes.crowd import Crowd
from tests.buffer.processes.roles import Acked, Finished, Got, consume, produce
from tests.buffer.processes.sink import Sink
from tests.support.processes import Start

PRODUCERS = 10
EACH = 2_000


def test_twenty_thousand_entries_of_ten_processes_arrive_once_and_in_order(tmp_path: Path, start: Start) -> None:
    crowd = Crowd(start)
    sink = Sink()
    names = [f"p{number}" for number in range(PRODUCERS)]
    consumer = crowd.start("consumer", consume, str(tmp_path), None, 0)
    producing = {crowd.start(name, produce, str(tmp_path), name, EACH, seed) for seed, name in enumerate(names)}
    is_told = is_over = False
    while not is_over:
        member, word = crowd.hear()
        match word:
            case Got():
                sink.take(word)
            case Acked():
                sink.note(word)
            case Finished():
                producing.discard(member)
                is_over = member is consumer
        if not producing and not is_told and sink.last + 1 == Manifest.read(tmp_path).next_sequence:
            consumer.child.tell("stop")
            is_told = True

    assert sink.by_producer() == {name: list(range(EACH)) for name in names}
    assert sink.repeated == 0
    left = Manifest.read(tmp_path)
    assert [entry.sequence for entry in left.entries] == list(range(sink.acked + 1, sink.last + 1))
