"""What every metadata log does, whatever it is kept in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import Closed, InvalidInput, PartitionOutOfRange
from penstock.metalog import MetadataLog, MetadataRecord, PartitionStart, Subscription
from tests.metalog.conftest import Backend
from tests.metalog.reading import expected, fill, of, soon, take
from tests.support.processes import PATIENCE
from tests.support.waiting import A_WHILE, Background

# Publishing


def test_offsets_are_counted_by_partition_and_are_what_subscribers_see(log: MetadataLog) -> None:
    published = [(partition, log.publish(partition, b"%d" % at)) for at, partition in enumerate((0, 2, 0, 0, 2, 1))]
    assert published == [(0, 0), (2, 0), (0, 1), (0, 2), (2, 1), (1, 0)]
    with log.subscribe([PartitionStart(0), PartitionStart(1), PartitionStart(2)]) as records:
        seen = take(records, 6)
    assert of(0, seen) == [MetadataRecord(0, 0, b"0"), MetadataRecord(0, 1, b"2"), MetadataRecord(0, 2, b"3")]
    assert of(1, seen) == [MetadataRecord(1, 0, b"5")]
    assert of(2, seen) == [MetadataRecord(2, 0, b"1"), MetadataRecord(2, 1, b"4")]


def test_threads_that_publish_together_leave_no_gap_and_each_returns_its_own_offset(
    log: MetadataLog, backend: Backend
) -> None:
    each = backend.share(1000)

    def publish(name: int) -> dict[int, bytes]:
        payloads = [b"%d of %d" % (number, name) for number in range(each)]
        return {log.publish(0, payload): payload for payload in payloads}

    publishers = [Background(lambda name=name: publish(name)) for name in range(4)]  # type: ignore[misc]
    published = [publisher.result() for publisher in publishers]
    for offsets in published:
        assert list(offsets) == sorted(offsets)
    together = {offset: payload for offsets in published for offset, payload in offsets.items()}
    with log.subscribe([PartitionStart(0)]) as records:
        seen = [(record.offset, record.payload) for record in take(records, 4 * each)]
    assert seen == sorted(together.items())
    assert [offset for offset, _ in seen] == list(range(4 * each))


def test_a_partition_that_is_not_there_is_refused_with_the_count(log: MetadataLog) -> None:
    for partition in (-1, 3, 2**31):
        with pytest.raises(PartitionOutOfRange) as refused:
            log.publish(partition, b"x")
        assert (refused.value.partition, refused.value.count) == (partition, 3)
        assert isinstance(refused.value, InvalidInput)
    assert log.high_water_marks() == [0, 0, 0]


def test_what_is_no_partition_is_refused(log: MetadataLog) -> None:
    for partition in (None, "0", 0.0, True):
        with pytest.raises(InvalidInput, match="partition"):
            log.publish(partition, b"x")  # type: ignore[arg-type]


def test_what_is_no_number_of_partitions_is_refused(backend: Backend) -> None:
    for count in (0, -1, 1.0, "1", True, 10_001, 2**31):
        with pytest.raises(InvalidInput, match="partition_count"):
            backend.open(count)  # type: ignore[arg-type]


def test_a_log_is_one_of_the_protocol_and_says_its_count(backend: Backend) -> None:
    log = backend.open(1)
    assert isinstance(log, MetadataLog)
    assert log.partition_count == 1
    assert "1 partition" in repr(log)


def test_a_stored_log_cannot_be_opened_with_another_count(stored: Backend) -> None:
    stored.open(2)
    with pytest.raises(InvalidInput, match="partition_count"):
        stored.open(3)
    assert stored.open(2).partition_count == 2


def test_what_is_published_is_there_when_the_log_is_opened_again(stored: Backend) -> None:
    with stored.open(2) as log:
        fill(log, 1, range(3))
    later = stored.open(2)
    assert later.high_water_marks() == [0, 3]
    fill(later, 1, range(3, 5))
    with later.subscribe([PartitionStart(1)]) as records:
        assert take(records, 5) == expected(1, range(5))


def test_two_open_logs_see_each_others_records(stored: Backend) -> None:
    one, other = stored.open(1), stored.open(1)
    with one.subscribe([PartitionStart(0)]) as of_one, other.subscribe([PartitionStart(0)]) as of_other:
        for offset in range(0, 10, 2):
            fill(one, 0, [offset])
            fill(other, 0, [offset + 1])
            assert take(of_one, 2) == take(of_other, 2) == expected(0, [offset, offset + 1])
        assert one.high_water_marks() == other.high_water_marks() == [10]


def test_high_water_marks_are_one_past_the_last_offset(log: MetadataLog) -> None:
    assert log.high_water_marks() == [0, 0, 0]
    fill(log, 1, range(3))
    fill(log, 2, range(1))
    assert log.high_water_marks() == [0, 3, 1]


def test_a_payload_may_be_empty(log: MetadataLog) -> None:
    assert [log.publish(0, b""), log.publish(0, b"x"), log.publish(0, b"")] == [0, 1, 2]
    with log.subscribe([PartitionStart(0)]) as records:
        assert [record.payload for record in take(records, 3)] == [b"", b"x", b""]


@pytest.mark.parametrize("kind", [bytearray, lambda data: memoryview(bytearray(data)), lambda data: data], ids=range(3))
def test_a_payload_is_copied_into_bytes(log: MetadataLog, kind: Callable[[bytearray], Any]) -> None:
    data = bytearray(b"before")
    log.publish(0, kind(data))
    data[:] = b"after!"
    with log.subscribe([PartitionStart(0)]) as records:
        (record,) = take(records, 1)
    assert record.payload == b"before"
    assert type(record.payload) is bytes


def test_a_payload_that_is_no_bytes_is_refused(log: MetadataLog) -> None:
    for payload in (None, "text", 7, [1], bytearray):
        with pytest.raises(InvalidInput):
            log.publish(0, payload)  # type: ignore[arg-type]
    assert log.high_water_marks() == [0, 0, 0]


def test_a_payload_of_two_mebibytes_passes_between_small_ones(log: MetadataLog, backend: Backend) -> None:
    if backend.name == "kafka":
        pytest.skip("a topic takes as much as its max.message.bytes says, by default a mebibyte")
    large = bytes(range(256)) * (2 << 20 >> 8)
    assert [log.publish(0, b"small"), log.publish(0, large), log.publish(0, b"small")] == [0, 1, 2]
    with log.subscribe([PartitionStart(0)]) as records:
        assert [record.payload for record in take(records, 3)] == [b"small", large, b"small"]


# Where a subscription starts


def test_the_backlog_comes_and_then_what_is_published(log: MetadataLog) -> None:
    fill(log, 0, range(5))
    with log.subscribe([PartitionStart(0)]) as records:
        assert take(records, 5) == expected(0, range(5))
        fill(log, 0, range(5, 8))
        assert take(records, 3) == expected(0, range(5, 8))
        assert records.poll(A_WHILE) is None


@pytest.mark.parametrize(("start", "first"), [(0, 0), (1, 1), (3, 3), (4, 4), (-1, 0), (-(2**70), 0)])
def test_a_start_is_inclusive_and_a_negative_one_means_0(log: MetadataLog, start: int, first: int) -> None:
    fill(log, 0, range(4))
    with log.subscribe([PartitionStart(0, start)]) as records:
        fill(log, 0, [4])
        assert take(records, 5 - first) == expected(0, range(first, 5))


def test_a_start_beyond_the_end_waits_for_it_and_nothing_below_it_comes(log: MetadataLog) -> None:
    fill(log, 0, range(2))
    with log.subscribe([PartitionStart(0, 5), PartitionStart(1, 1)]) as records:
        assert records.poll(A_WHILE) is None
        for offset in range(2, 5):
            fill(log, 0, [offset])
            assert records.poll(0) is None
        fill(log, 1, range(2))
        assert take(records, 1) == expected(1, [1])
        fill(log, 0, range(5, 7))
        assert take(records, 2) == expected(0, [5, 6])


def test_a_start_far_beyond_the_end_waits(log: MetadataLog) -> None:
    fill(log, 0, range(2))
    with log.subscribe([PartitionStart(0, 2**62), PartitionStart(1)]) as records:
        fill(log, 0, range(2, 4))
        fill(log, 1, range(1))
        assert take(records, 1) == expected(1, [0])
        assert records.poll(A_WHILE) is None
        assert records.assigned() == [0, 1]


def test_partitions_that_are_not_there_are_ignored(log: MetadataLog) -> None:
    fill(log, 1, range(1))
    starts = [PartitionStart(-1), PartitionStart(3), PartitionStart(1), PartitionStart(2**40)]
    with log.subscribe(iter(starts)) as records:
        assert records.assigned() == [1]
        assert take(records, 1) == expected(1, [0])


def test_of_a_repeated_partition_the_first_start_counts(log: MetadataLog) -> None:
    fill(log, 0, range(4))
    with log.subscribe([PartitionStart(0, 2), PartitionStart(0, 0), PartitionStart(0, 3)]) as records:
        assert records.assigned() == [0]
        assert take(records, 2) == expected(0, [2, 3])
        assert records.poll(A_WHILE) is None


@pytest.mark.parametrize("start", [0, (0, 0), None], ids=repr)
def test_what_is_no_start_is_refused(log: MetadataLog, start: Any) -> None:
    with pytest.raises(InvalidInput, match="PartitionStart"):
        log.subscribe([start])
    with log.subscribe([]) as records, pytest.raises(InvalidInput, match="PartitionStart"):
        records.add(start)


@pytest.mark.parametrize("values", [("0", 0), (0, None), (True, 0), (0, 1.0)], ids=repr)
def test_a_start_is_of_integers(values: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match="must be an integer"):
        PartitionStart(*values)


# Taking records


def test_a_poll_waits_for_its_timeout(log: MetadataLog) -> None:
    with log.subscribe([PartitionStart(0)]) as records:
        before = time.monotonic()
        assert records.poll(A_WHILE) is None
        assert A_WHILE <= time.monotonic() - before < PATIENCE / 2


def test_a_poll_of_no_partition_waits_for_its_timeout(log: MetadataLog) -> None:
    fill(log, 0, range(1))
    with log.subscribe([]) as records:
        before = time.monotonic()
        assert records.poll(A_WHILE) is None
        assert A_WHILE <= time.monotonic() - before < PATIENCE / 2
        assert records.poll(0) is None


def test_a_poll_of_0_takes_what_is_there_and_does_not_wait(log: MetadataLog) -> None:
    with log.subscribe([PartitionStart(0)]) as records:
        assert records.poll(0) is None
        fill(log, 0, range(1))
        until = time.monotonic() + PATIENCE
        record = records.poll(0)
        while record is None and time.monotonic() < until:  # Kafka's client is asked, and answers a later call
            record = records.poll(0)
        assert record == expected(0, [0])[0]
        assert records.poll(0) is None


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_a_poll_that_waits_takes_what_is_published_then(log: MetadataLog, timeout: float | None) -> None:
    with log.subscribe([PartitionStart(0), PartitionStart(2)]) as records:
        waiting = Background(lambda: records.poll(timeout))
        assert not waiting.has_ended_within(A_WHILE / 2)
        fill(log, 2, range(1))
        assert [waiting.result()] == expected(2, [0])


def test_what_is_no_time_is_refused(log: MetadataLog) -> None:
    with log.subscribe([PartitionStart(0)]) as records:
        for timeout in (-1, float("nan"), float("inf"), "1", True):
            with pytest.raises(InvalidInput, match="timeout"):
                records.poll(timeout)  # type: ignore[arg-type]


def test_an_iteration_waits_for_what_comes(log: MetadataLog) -> None:
    fill(log, 0, range(2))
    with log.subscribe([PartitionStart(0)]) as records:
        assert iter(records) is records
        assert [next(records), next(records)] == expected(0, range(2))
        waiting = Background(lambda: next(records))
        fill(log, 0, [2])
        assert [waiting.result()] == expected(0, [2])


def test_an_async_for_takes_the_backlog_and_waits_for_what_comes(log: MetadataLog) -> None:
    fill(log, 0, range(3))

    async def read(records: Subscription) -> list[MetadataRecord]:
        seen = []
        async for record in records:
            seen.append(record)
            if record.offset == 2:
                publishing = asyncio.to_thread(fill, log, 0, range(3, 6))
                live = asyncio.create_task(publishing)
            if record.offset == 5:
                await live
                return seen
        return seen

    with log.subscribe([PartitionStart(0)]) as records:
        assert asyncio.run(soon(read(records))) == expected(0, range(6))


def test_two_subscribers_see_the_same(log: MetadataLog) -> None:
    starts = [PartitionStart(0), PartitionStart(1)]
    fill(log, 0, range(10))
    with log.subscribe(starts) as one, log.subscribe(starts) as other:
        fill(log, 1, range(10))
        seen, also = take(one, 20), take(other, 20)
    for partition in (0, 1):
        assert of(partition, seen) == of(partition, also) == expected(partition, range(10))


# Adding and removing


def test_what_is_assigned_is_sorted(log: MetadataLog) -> None:
    with log.subscribe([PartitionStart(2), PartitionStart(0)]) as records:
        assert records.assigned() == [0, 2]
        records.add(PartitionStart(1))
        assert records.assigned() == [0, 1, 2]
        records.remove(0)
        assert records.assigned() == [1, 2]


def test_a_partition_that_is_added_is_delivered_from_its_start(log: MetadataLog) -> None:
    fill(log, 0, range(1))
    fill(log, 1, range(4))
    with log.subscribe([PartitionStart(0)]) as records:
        assert take(records, 1) == expected(0, [0])
        records.add(PartitionStart(1, 2))
        assert take(records, 2) == expected(1, [2, 3])
        fill(log, 1, [4])
        assert take(records, 1) == expected(1, [4])


@pytest.mark.parametrize("assigned", [[], [PartitionStart(0)]], ids=["to none", "to another"])
def test_a_partition_is_added_while_a_poll_waits(log: MetadataLog, assigned: list[PartitionStart]) -> None:
    fill(log, 1, range(2))
    with log.subscribe(assigned) as records:
        waiting = Background(lambda: records.poll(None))
        assert not waiting.has_ended_within(A_WHILE / 2)
        records.add(PartitionStart(1, 1))
        assert [waiting.result()] == expected(1, [1])


def test_to_add_what_is_assigned_or_not_there_changes_nothing(log: MetadataLog) -> None:
    fill(log, 0, range(5))
    with log.subscribe([PartitionStart(0, 1)]) as records:
        assert take(records, 2) == expected(0, [1, 2])
        for start in (PartitionStart(0, 0), PartitionStart(0, 4), PartitionStart(3), PartitionStart(-1)):
            records.add(start)
        assert records.assigned() == [0]
        assert take(records, 2) == expected(0, [3, 4])
        assert records.poll(A_WHILE) is None


def test_to_remove_what_is_not_assigned_changes_nothing(log: MetadataLog) -> None:
    fill(log, 0, range(3))
    with log.subscribe([PartitionStart(0)]) as records:
        assert take(records, 1) == expected(0, [0])
        for partition in (1, 2, 3, -1):
            records.remove(partition)
        assert records.assigned() == [0]
        assert take(records, 2) == expected(0, [1, 2])


def test_what_is_removed_is_not_delivered_even_if_it_is_in_a_buffer(log: MetadataLog) -> None:
    fill(log, 0, range(20))
    fill(log, 1, range(20))
    with log.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
        seen = take(records, 10)
        records.remove(0)
        assert records.assigned() == [1]
        seen_of_1 = of(1, seen)
        assert take(records, 20 - len(seen_of_1)) == expected(1, range(len(seen_of_1), 20))
        fill(log, 0, range(20, 22))
        assert records.poll(A_WHILE) is None


@pytest.mark.parametrize("again", [0, 7, 12, 14])
def test_a_partition_that_is_removed_and_added_again_starts_at_its_new_start(log: MetadataLog, again: int) -> None:
    fill(log, 0, range(12))
    with log.subscribe([PartitionStart(0), PartitionStart(1)]) as records:
        assert take(records, 5) == expected(0, range(5))
        records.remove(0)
        assert records.poll(0) is None
        records.add(PartitionStart(0, again))
        fill(log, 0, range(12, 15))
        assert take(records, 15 - again) == expected(0, range(again, 15))
        assert records.poll(0) is None


# Closing


def test_a_closed_subscription_refuses_and_iterations_are_over(log: MetadataLog) -> None:
    fill(log, 0, range(3))
    with log.subscribe([PartitionStart(0)]) as records:
        take(records, 1)
    records.close()
    calls: list[Callable[[], object]] = [
        lambda: records.poll(0),
        lambda: records.poll(None),
        lambda: records.add(PartitionStart(1)),
        lambda: records.remove(0),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    assert records.assigned() == []
    assert list(records) == []
    assert "closed" in repr(records)

    async def read() -> list[MetadataRecord]:
        return [record async for record in records]

    assert asyncio.run(soon(read())) == []
    assert log.publish(0, b"the log is open") == 3


@pytest.mark.parametrize("starts", [[], [PartitionStart(0), PartitionStart(1)]], ids=["nothing", "something"])
@pytest.mark.parametrize("closed", ["subscription", "log"])
def test_to_close_a_subscription_or_its_log_ends_what_waits_for_it(
    log: MetadataLog, closed: str, starts: list[PartitionStart]
) -> None:
    records = log.subscribe(starts)

    async def read() -> list[MetadataRecord]:
        return [record async for record in records]

    polling = [Background(lambda: records.poll(None)), Background(lambda: records.poll(PATIENCE))]
    iterating = [Background(lambda: list(records)), Background(lambda: asyncio.run(read()))]
    waiting: list[Background[Any]] = [*polling, *iterating]
    assert not any(one.has_ended_within(A_WHILE / 4) for one in waiting)
    (records if closed == "subscription" else log).close()
    assert [one.result() for one in iterating] == [[], []]
    for one in polling:
        with pytest.raises(Closed):
            one.result()
    records.close()


def test_a_closed_log_refuses(backend: Backend) -> None:
    with backend.open(1) as log:
        fill(log, 0, range(1))
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: log.publish(0, b"x"),
        log.high_water_marks,
        lambda: log.subscribe([PartitionStart(0)]),
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    assert log.partition_count == 1


def test_a_subscription_is_closed_by_its_with_whatever_happens(log: MetadataLog) -> None:
    with pytest.raises(ZeroDivisionError), log.subscribe([PartitionStart(0)]) as records:
        raise ZeroDivisionError
    with pytest.raises(Closed):
        records.poll(0)
