"""Groups: independent readers of one buffer. Each has its own fence, its own acks, its own lag."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from penstock.buffer import Consumer, ConsumerConfig, Manifest, peek
from penstock.buffer.groups import Groups
from penstock.buffer.manifest.state import Limits
from penstock.errors import Fenced, InvalidInput, NotFound, OutOfOrderAck
from penstock.storage import ObjectStore
from penstock.testing import Fault, FaultyStore
from tests.buffer.consumer.intercepted_store import InterceptedStore
from tests.support.filled_buffers import (
    MANIFEST,
    USES,
    Cursors,
    cursors,
    epoch,
    fill,
    kept,
    metric,
    queue_up,
    read,
    sequences,
)

MANIFESTS = ["native"]
NOW = 1_700_000_000.0  # 2023-11-14T22:13:20+00:00
LOST = [Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT, Fault.LATE]


def join(
    store: ObjectStore,
    group: str,
    start: str | int = "earliest",
    last_acked_sequence: int | None = None,
    *,
    clock: Callable[[], float] = lambda: NOW,
) -> Consumer:
    """A consumer of a group."""
    return Consumer(store, ConsumerConfig(gc=False, group=group, start=start), last_acked_sequence, clock=clock)


def acked(store: ObjectStore) -> dict[str, int]:
    """How far each group has acked."""
    return {name: group.acked_through for name, group in Manifest.read(store).groups.items()}


def lag(store: ObjectStore, group: str) -> float | None:
    return metric("group_lag", store.url, group=group)


def ack(consumer: Consumer, through: int) -> None:
    """Read up to a sequence, and ack it."""
    while consumer.last_handed_out_sequence is None or consumer.last_handed_out_sequence < through:
        assert consumer.next_descriptors(1)
    consumer.ack_through(through)


# Where a new group begins


@pytest.mark.parametrize(
    ("start", "expected"), [("earliest", [0, 1, 2]), ("latest", []), (0, [0, 1, 2]), (1, [1, 2]), (2, [2])]
)
@pytest.mark.parametrize("group", ["audit", "default"])
def test_a_new_group_begins_at_its_start(store: ObjectStore, group: str, start: str | int, expected: list[int]) -> None:
    queue_up(store, 3)
    consumer = join(store, group, start)
    assert len(consumer) == len(expected)
    assert sequences(consumer.next_descriptors(9)) == expected
    queue_up(store, 1)
    assert sequences(consumer.next_descriptors(9)) == [3]


def test_a_new_group_begins_at_the_first_entry_that_is_kept(store: ObjectStore) -> None:
    queue_up(store, 3)
    ack(join(store, "default"), 0)
    assert sequences(join(store, "audit").next_descriptors(9)) == [1, 2]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_new_group_may_be_there_before_the_buffer(store: ObjectStore, start: str) -> None:
    consumer = join(store, "audit", start)
    queue_up(store, 2)
    assert sequences(consumer.next_descriptors(9)) == [0, 1]
    assert acked(store) == {"default": -1, "audit": -1}


@pytest.mark.parametrize("group", ["audit", "default"])
@pytest.mark.parametrize("start", [0, 3, 17])
def test_a_start_that_is_not_there_is_refused_and_fences_no_consumer(
    store: ObjectStore, group: str, start: int
) -> None:
    queue_up(store, 3)
    slow = join(store, "slow")
    Groups(store).drop("default")
    ack(slow, 0)
    before = store.get(MANIFEST).data
    with pytest.raises(InvalidInput, match=rf"there are 1 to 2\), not at {start}$"):
        join(store, group, start)
    assert store.get(MANIFEST).data == before
    slow.flush()


def test_a_sequence_to_start_at_is_refused_where_there_is_none(memory: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="there is none at the moment"):
        join(memory, "audit", 0)
    assert list(memory.list_objects()) == []


@pytest.mark.parametrize("start", ["latest", 2, 17])
@pytest.mark.parametrize("group", ["audit", "default"])
def test_a_start_does_not_count_once_a_group_has_had_a_consumer(
    memory: ObjectStore, group: str, start: str | int
) -> None:
    queue_up(memory, 3)
    ack(join(memory, group), 0)
    assert sequences(join(memory, group, start).next_descriptors(9)) == [1, 2]


def test_a_start_counts_for_default_while_it_has_never_had_a_consumer(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    ack(join(memory, "audit"), 1)
    assert sequences(join(memory, "default", "latest").next_descriptors(9)) == []
    assert kept(memory) == [2]  # which the group `audit` has not acked
    assert sequences(join(memory, "default", "earliest").next_descriptors(9)) == []


def test_a_start_does_not_count_in_a_group_that_was_created(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    Groups(memory).create("audit", start=2)
    assert sequences(join(memory, "audit", "earliest").next_descriptors(9)) == [2]


@pytest.mark.parametrize("fault", LOST)
def test_a_start_counts_once_though_the_reply_of_the_claim_is_lost(memory: ObjectStore, fault: Fault) -> None:
    queue_up(memory, 3)
    faulty = FaultyStore(memory, rates={})
    faulty.inject(fault, operation="put_if_match", path=MANIFEST)
    consumer = join(faulty, "audit", "latest")
    faulty.settle()
    assert not faulty.planned
    queue_up(memory, 1)
    assert sequences(consumer.next_descriptors(9)) == [3]


def test_the_claim_alone_creates_a_group(store: ObjectStore) -> None:
    queue_up(store, 1)
    intercepted = InterceptedStore(store)
    join(intercepted, "audit")
    assert intercepted.calls == [("get", MANIFEST), ("put_if_match", MANIFEST)]


def test_a_new_group_resumes_behind_what_its_caller_remembers(memory: ObjectStore) -> None:
    queue_up(memory, 4)
    assert sequences(join(memory, "audit", last_acked_sequence=1).next_descriptors(9)) == [2, 3]
    with pytest.raises(InvalidInput, match="last_acked_sequence 0 would skip entries"):
        join(memory, "audit", last_acked_sequence=0)


# Each sees everything once


def test_three_groups_at_their_own_speeds_see_everything_once(store: ObjectStore) -> None:
    speeds = {"default": 1, "audit": 3, "backup": 7}
    batches = [b"%d" % number for number in range(12)]
    fill(store, *[[batch] for batch in batches[:6]])
    consumers = {group: join(store, group) for group in speeds}
    seen: dict[str, list[bytes]] = {group: [] for group in speeds}
    fill(store, *[[batch] for batch in batches[6:]])
    while any(len(found) < len(batches) for found in seen.values()):
        for group, most in speeds.items():
            for _ in range(most):
                batch = consumers[group].next_batch()
                if batch is not None:
                    seen[group] += batch.entries
                    batch.ack()
            slowest = min(len(found) for found in seen.values())
            assert kept(store) == list(range(slowest, len(batches)))
    assert seen == dict.fromkeys(speeds, batches)
    assert acked(store) == dict.fromkeys(speeds, 11)


def test_three_groups_see_everything_once_through_segments(memory: ObjectStore) -> None:
    count = 3 * Limits().tail_entries + 5
    groups = {"default": 1, "audit": 100, "backup": 333}
    consumers = {group: join(memory, group) for group in groups}
    for _ in range(3):
        queue_up(memory, Limits().tail_entries)
    queue_up(memory, 5)
    seen: dict[str, list[int]] = {group: [] for group in groups}
    while len(seen["audit"]) < count:
        for group, most in groups.items():
            found = sequences(consumers[group].next_descriptors(most))
            seen[group] += found
            if found:
                consumers[group].ack_through(found[-1])
    assert seen["audit"] == seen["backup"] == list(range(count))
    assert kept(memory) == list(range(len(seen["default"]), count))


def test_a_group_is_handed_what_others_have_acked(store: ObjectStore) -> None:
    fill(store, [b"a"], [b"b"])
    fast, slow = join(store, "fast"), join(store, "slow")
    for batch in fast:
        batch.ack()
    assert [batch.entries for batch in slow] == [[b"a"], [b"b"]]


def test_a_group_may_not_ack_what_only_another_was_handed(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    one, other = join(memory, "one"), join(memory, "other")
    one.next_descriptors(2)
    with pytest.raises(OutOfOrderAck):
        other.ack_through(1)
    assert acked(memory)["other"] == -1


def test_an_ack_is_not_undone_by_one_of_another_group(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    intercepted = InterceptedStore(memory)
    one, other = join(intercepted, "one"), join(memory, "other")
    one.next_descriptors(3)
    intercepted.before("put_if_match", lambda: ack(other, 1), path=MANIFEST)
    one.ack_through(2)  # loses to the other, and goes on
    assert acked(memory) == {"default": -1, "one": 2, "other": 1}


def test_a_queue_is_as_long_as_its_group_has_not_acked(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    one, other = join(memory, "one"), join(memory, "other")
    ack(one, 2)
    other.flush()
    assert (len(one), one.is_empty, len(other), other.is_empty) == (0, True, 3, False)


def test_peek_shows_what_a_group_has_not_acked(memory: ObjectStore) -> None:
    fill(memory, [b"a"], [b"b"])
    ack(join(memory, "audit"), 0)
    assert [record.value for record in peek(memory, group="audit")] == [b"b"]
    assert [record.value for record in peek(memory)] == [b"a", b"b"]
    with pytest.raises(InvalidInput, match="no group 'missing'"):
        peek(memory, group="missing")


# Fences


def test_a_fence_is_one_of_its_group(store: ObjectStore) -> None:
    queue_up(store, 3)
    first, other = join(store, "audit"), join(store, "backup")
    second = join(store, "audit")
    with pytest.raises(Fenced):
        first.flush()
    other.flush()
    ack(other, 1)
    ack(second, 0)
    assert acked(store) == {"default": -1, "audit": 0, "backup": 1}


def test_every_epoch_is_given_once_over_all_groups(memory: ObjectStore) -> None:
    for group in ("audit", "default", "audit", "backup"):
        join(memory, group)
    groups = Manifest.read(memory).groups
    assert {name: group.epoch for name, group in groups.items()} == {"default": 2, "audit": 3, "backup": 4}
    assert epoch(memory) == 4


def test_a_fence_names_the_new_owner_and_the_time(store: ObjectStore) -> None:
    first = join(store, "audit", clock=lambda: NOW - 100)
    join(store, "audit", clock=lambda: NOW)
    owner = f"{socket.gethostname()}:{os.getpid()}"
    with pytest.raises(Fenced) as fenced:
        first.flush()
    message = str(fenced.value)
    assert f"the group 'audit' of {store.url}/{MANIFEST}" in message
    assert f"{owner}, at 2023-11-14 22:13:20 UTC; its epoch is 2, and this one's 1" in message


def test_a_manifest_that_was_deleted_is_not_reported_as_a_takeover_in_1970(memory: ObjectStore) -> None:
    consumer = join(memory, "default")
    memory.delete([MANIFEST])
    with pytest.raises(Fenced) as fenced:
        consumer.flush()
    assert "1970" not in str(fenced.value)


# What is dequeued, and when


def test_nothing_is_dequeued_before_the_slowest_group_has_acked_it(store: ObjectStore) -> None:
    queue_up(store, 5)
    slow, fast = join(store, "slow"), join(store, "default")
    ack(fast, 4)
    assert kept(store) == [0, 1, 2, 3, 4]
    ack(slow, 1)
    assert kept(store) == [2, 3, 4]
    ack(slow, 4)
    assert kept(store) == []


def test_nothing_is_dequeued_that_a_group_without_a_consumer_has_not_acked(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    ack(join(memory, "audit"), 2)
    assert kept(memory) == [0, 1, 2]  # for `default`, which is there from the beginning


def test_nothing_is_dequeued_where_there_is_no_group(memory: ObjectStore) -> None:
    queue_up(memory, 3)
    Groups(memory).drop("default", force=True)
    queue_up(memory, 1)
    assert (kept(memory), acked(memory)) == ([0, 1, 2, 3], {})
    assert sequences(join(memory, "late").next_descriptors(9)) == [0, 1, 2, 3]


def test_the_last_group_is_dropped_by_force_alone(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    consumer = join(memory, "default")
    with pytest.raises(InvalidInput, match="'default' is the last group"):
        Groups(memory).drop("default")
    consumer.flush()


def test_a_drop_frees_what_only_that_group_held_back(store: ObjectStore) -> None:
    queue_up(store, 5)
    consumers = [join(store, group) for group in ("default", "slow", "slower")]
    for consumer, through in zip(consumers, (3, 0, 1), strict=True):
        ack(consumer, through)
    assert kept(store) == [1, 2, 3, 4]
    Groups(store).drop("slow")
    assert kept(store) == [2, 3, 4]
    Groups(store).drop("slower")
    assert kept(store) == [4]


def test_an_object_that_is_gone_is_reported_to_the_group_that_has_not_acked_it(memory: ObjectStore) -> None:
    first, _ = fill(memory, [b"a"], [b"b"])
    one, other = join(memory, "one"), join(memory, "other")
    read(one).ack()
    memory.delete([first.location])
    assert read(one).entries == [b"b"]
    with pytest.raises(NotFound, match="sequence 0 "):
        other.next_batch()


# A group that is reset, or gone


@pytest.mark.parametrize("use", USES)
def test_a_consumer_whose_group_is_gone_is_fenced_and_never_creates_it_again(store: ObjectStore, use: str) -> None:
    queue_up(store, 2)
    consumer = join(store, "audit")
    consumer.next_descriptors(1)
    Groups(store).drop("audit")
    before = store.get(MANIFEST).data
    for _ in range(2):
        with pytest.raises(Fenced, match=f"the group 'audit' of {store.url}/{MANIFEST} is gone"):
            USES[use](consumer)
    with pytest.raises(Fenced):
        consumer.close()
    assert cursors(consumer) == Cursors(None, None, 0)
    assert store.get(MANIFEST).data == before


def test_a_group_that_goes_while_its_ack_is_on_its_way_is_not_created_again(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    intercepted = InterceptedStore(memory)
    consumer = join(intercepted, "audit")
    consumer.next_descriptors(1)
    intercepted.before("put_if_match", lambda: Groups(memory).drop("audit"), path=MANIFEST)
    with pytest.raises(Fenced, match="gone"):
        consumer.ack_through(0)
    assert acked(memory) == {"default": -1}


@pytest.mark.parametrize("again", ["created", "joined"])
def test_a_group_that_was_dropped_and_created_again_never_has_an_old_epoch(store: ObjectStore, again: str) -> None:
    queue_up(store, 3)
    old = []
    for _ in range(3):
        old.append(join(store, "audit"))
        old[-1].next_descriptors(2)  # before the next one fences it
    Groups(store).drop("audit")
    for _ in range(4):  # as many as a count of its own would need to reach the old epochs
        if again == "created":
            Groups(store).create("audit")
            Groups(store).drop("audit")
        else:
            join(store, "audit")
        for consumer in old:
            with pytest.raises(Fenced):
                consumer.ack_through(1)
    assert acked(store).get("audit", -1) == -1


@pytest.mark.parametrize(("to", "expected"), [("earliest", [0, 1, 2, 3]), ("latest", []), (0, [0, 1, 2, 3]), (3, [3])])
def test_a_reset_fences_and_lets_the_next_consumer_begin_there(
    store: ObjectStore, to: str | int, expected: list[int]
) -> None:
    queue_up(store, 4)
    consumer = join(store, "audit")
    ack(consumer, 1)
    Groups(store).reset("audit", to)
    consumer.next_descriptors(0)
    with pytest.raises(Fenced, match="audit"):
        consumer.next_descriptors(1)
    with pytest.raises(Fenced, match="audit"):
        consumer.flush()
    assert sequences(join(store, "audit").next_descriptors(9)) == expected


def test_a_reset_fences_no_consumer_else(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    audit, default = join(memory, "audit"), join(memory, "default")
    Groups(memory).reset("audit", "latest")
    default.flush()
    with pytest.raises(Fenced):
        audit.flush()


def test_a_reset_to_the_end_frees_what_the_group_held_back(memory: ObjectStore) -> None:
    queue_up(memory, 4)
    ack(join(memory, "default"), 2)
    join(memory, "audit")
    Groups(memory).reset("audit", "latest")
    assert kept(memory) == [3]


@pytest.mark.parametrize("to", [0, 4])
def test_a_reset_to_what_is_not_there_is_refused_and_fences_no_consumer(memory: ObjectStore, to: int) -> None:
    queue_up(memory, 4)
    consumer = join(memory, "default")
    ack(consumer, 0)
    with pytest.raises(InvalidInput, match=rf"there are 1 to 3\), not at {to}$"):
        Groups(memory).reset("default", to)
    consumer.flush()


def test_changes_of_a_group_that_is_not_there_are_refused(memory: ObjectStore) -> None:
    queue_up(memory, 1)
    before = memory.get(MANIFEST).data
    groups = Groups(memory)
    uses: list[Callable[[], object]] = [lambda: groups.drop("missing"), lambda: groups.reset("missing", "latest")]
    for use in uses:
        with pytest.raises(InvalidInput, match=r"no group 'missing'.*default"):
            use()
    with pytest.raises(InvalidInput, match=r"'default' is in .* already"):
        groups.create("default")
    assert memory.get(MANIFEST).data == before


# Lag


def test_the_lag_of_each_group_is_what_it_has_not_acked(store: ObjectStore) -> None:
    queue_up(store, 5)
    default, audit = join(store, "default"), join(store, "audit")
    ack(default, 3)
    ack(audit, 0)
    assert (lag(store, "default"), lag(store, "audit")) == (1, 4)
    queue_up(store, 2)
    assert (lag(store, "default"), lag(store, "audit")) == (3, 6)


def test_the_lag_of_a_group_that_has_acked_everything_is_nothing(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    ack(join(memory, "audit"), 1)
    assert (lag(memory, "audit"), lag(memory, "default")) == (0, 2)
    assert [(group.name, group.lag) for group in Groups(memory).list()] == [("default", 2), ("audit", 0)]


def test_a_group_that_is_gone_has_no_lag_any_more(memory: ObjectStore) -> None:
    queue_up(memory, 2)
    consumer = join(memory, "default")
    join(memory, "audit")
    Groups(memory).drop("audit")
    consumer.flush()
    assert lag(memory, "audit") is None
