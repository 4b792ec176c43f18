"""The batches and acks of a consumer, as a test received them. What contradicts a promise fails the test."""

from __future__ import annotations

from collections import defaultdict

from tests.buffer.processes.worker_tasks import Acked, Got


class ReceivedBatches:
    """Keeps each batch under its sequence. A batch that was not acked may come again, as it was."""

    def __init__(self) -> None:
        self._batches: list[list[bytes]] = []
        self._start = 0
        self.acked = -1
        self.durable = -1
        self.repeated = 0

    @property
    def last(self) -> int:
        """The last sequence received; -1 before the first."""
        return len(self._batches) - 1

    def expect_after(self, last: int | None) -> None:
        """A new consumer starts: after the ack that it was given, or at least after what was acked durably."""
        self._start = 1 + (self.durable if last is None else last)

    def add(self, got: Got) -> None:
        """Keep a batch of the consumer."""
        assert got.sequence >= self._start, "what was acked came again"
        assert got.sequence <= self.last + 1, "a batch is missing before this one"
        if got.sequence <= self.last:
            assert got.entries == self._batches[got.sequence], "it was another one the first time"
            self.repeated += 1
        else:
            self._batches.append(got.entries)
        self._start = got.sequence + 1  # one consumer never hands out a batch twice

    def add_ack(self, acked: Acked) -> None:
        """Note an ack that returned."""
        self.acked = max(self.acked, acked.sequence)
        self.durable = max(self.durable, acked.sequence if acked.is_durable else -1)

    def by_producer(self) -> dict[str, list[int]]:
        """The numbers received from each producer, in the order in which they were received."""
        numbers: dict[str, list[int]] = defaultdict(list)
        for batch in self._batches:
            for entry in batch:
                name, number = entry.decode().rsplit("-", 1)
                numbers[name].append(int(number))
        return dict(numbers)
