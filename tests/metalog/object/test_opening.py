"""`log.json`: how many partitions there are is said once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.checked_json import encode_fields
from penstock.errors import Closed, CorruptData, InvalidInput, NotFound, OutcomeUnknown, PartitionOutOfRange
from penstock.metalog import ObjectMetadataLog, PartitionStart
from penstock.storage import MemoryStore
from penstock.testing import Fault, FaultyStore
from tests.metalog.object.stores import WatchedStore
from tests.support.processes import Parent, Start, let_go
from tests.support.waiting import A_WHILE, Background, Bell

FOUR = b'{"version":1,"partition_count":4,"xxh3":"48471ba5b9d9e9bd"}\n'


def test_the_number_of_partitions_is_stored(fresh_name: str) -> None:
    ObjectMetadataLog(MemoryStore(fresh_name), 4).close()

    assert MemoryStore(fresh_name).get("log.json").data == FOUR
    with ObjectMetadataLog(MemoryStore(fresh_name)) as log:
        assert log.partition_count == 4
    with pytest.raises(InvalidInput, match=r"partition_count must be 4.*not 5"):
        ObjectMetadataLog(MemoryStore(fresh_name), 5)


def test_a_log_that_is_not_there_is_not_found(fresh_name: str) -> None:
    with pytest.raises(NotFound, match="there is no metadata log"):
        ObjectMetadataLog(MemoryStore(fresh_name))
    assert not list(MemoryStore(fresh_name).list_objects())


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2", 10_001, 2**31, 10**30])
def test_what_is_no_number_of_partitions_is_refused(count: int, fresh_name: str) -> None:
    with pytest.raises(InvalidInput, match="partition_count"):
        ObjectMetadataLog(MemoryStore(fresh_name), count)


WRONG_FIELDS: list[dict[str, str | int]] = [
    {},
    {"partition_count": 0},
    {"partition_count": -4},
    {"partition_count": "4"},
    {"partition_count": True},
    {"partition_count": 4, "more": 1},
]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        b"\xff\xfe",
        b'{"version":1}',
        b'{"version":2,"partition_count":4}',
        b'{"version":1,"partition_count":0}',
        b'{"version":1,"partition_count":-4}',
        b'{"version":1,"partition_count":10001}',
        b'{"version":1,"partition_count":2147483648}',
        b'{"version":1,"partition_count":' + b"9" * 4_000 + b"}",
        b'{"version":1,"partition_count":' + b"9" * 1_000_000 + b"}",
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"version":1,"partition_count":4}',
        b'{"version":1,"partition_count":"4"}',
        b'{"version":1,"partition_count":4.5}',
        b'{"version":1,"partition_count":true}',
        b'{"version":1,"partition_count":4}',
        FOUR[:-1],
        FOUR + b"x",
        FOUR.replace(b"4,", b"5,"),
        FOUR.replace(b":", b": "),
        *(encode_fields({"version": 1, **fields}) for fields in WRONG_FIELDS),
        b'{"version":1,"\xff":"\xff","partition_count":',
        b"[1,4]",
    ],
)
def test_a_corrupt_number_of_partitions_is_corrupt(data: bytes, fresh_name: str) -> None:
    store = MemoryStore(fresh_name)
    store.put("log.json", data)

    for count in (None, 4):
        with pytest.raises(CorruptData, match=r"log\.json"):
            ObjectMetadataLog(store, count)


@pytest.mark.parametrize(
    "fault", [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.EXISTS_WHILE_ABSENT, Fault.LATE]
)
def test_a_log_is_made_though_the_reply_is_lost(fault: Fault, fresh_name: str) -> None:
    store = FaultyStore(MemoryStore(fresh_name), rates={})
    store.inject(fault, operation="put_if_absent")

    with ObjectMetadataLog(store, 2) as log:
        assert log.partition_count == 2
    assert not store.planned


def test_a_log_that_is_created_with_another_number_meanwhile_is_refused(fresh_name: str) -> None:
    store = WatchedStore(MemoryStore(fresh_name))

    def come_first(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            store.before = lambda operation, path: None
            ObjectMetadataLog(store.below, 3).close()

    store.before = come_first
    with pytest.raises(InvalidInput, match="must be 3"):
        ObjectMetadataLog(store, 2)


def test_a_store_that_never_says_whether_it_made_one_is_unknown(fresh_name: str) -> None:
    with pytest.raises(OutcomeUnknown):
        ObjectMetadataLog(FaultyStore(MemoryStore(fresh_name), rates={Fault.ERROR_BEFORE: 1.0}), 2)


def make(parent: Parent, where: str, count: int) -> int | str:
    """Make the log, in a process, and say what came of it."""
    parent.tell()
    parent.wait()
    try:
        with ObjectMetadataLog(where, count) as log:
            return log.partition_count
    except InvalidInput as error:
        return str(error)


def test_of_two_processes_that_make_it_with_different_numbers_one_wins(start: Start, tmp_path: object) -> None:
    for round_number in range(4):
        where = f"{tmp_path}/{round_number}"
        children = [start(make, where, count) for count in (2, 3)]
        let_go(children)
        answers = [child.answer() for child in children]
        with ObjectMetadataLog(where) as log:
            won = log.partition_count
        other = 5 - won
        assert answers[won - 2] == won
        assert f"partition_count must be {won}" in answers[other - 2]


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.publish(0, b"x"),
        lambda log: log.high_water_marks(),
        lambda log: log.subscribe([PartitionStart(0)]),
    ],
)
def test_a_closed_log_says_so(use: Callable[[ObjectMetadataLog], object], fresh_name: str) -> None:
    log = ObjectMetadataLog(MemoryStore(fresh_name), 2)
    log.close()
    log.close()

    with pytest.raises(Closed):
        use(log)


def test_a_partition_that_there_is_not_is_out_of_range(fresh_name: str) -> None:
    with ObjectMetadataLog(MemoryStore(fresh_name), 2) as log:
        for partition in (-1, 2):
            with pytest.raises(PartitionOutOfRange):
                log.publish(partition, b"x")


@pytest.mark.parametrize("partitions", [1, 3])
def test_closing_a_log_ends_a_subscription_that_waits(partitions: int, fresh_name: str) -> None:
    log = ObjectMetadataLog(MemoryStore(fresh_name), partitions)
    records = log.subscribe([PartitionStart(partition) for partition in range(partitions)])
    seen = Bell()

    def follow() -> int:
        count = 0
        for _ in records:
            count += 1
            seen()
        return count

    following = Background(follow)
    log.publish(0, b"x")
    seen.wait()
    assert not following.has_ended_within(A_WHILE / 2)
    log.close()

    assert following.result() == 1
