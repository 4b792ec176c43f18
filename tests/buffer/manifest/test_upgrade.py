"""From version 1 to version 2 in one compare-and-set, while everybody goes on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import GarbageCollector, Manifest
from penstock.buffer.descriptors import Metadata
from penstock.buffer.groups import Writers
from penstock.buffer.manifest.queue import BufferQueue
from penstock.buffer.manifest.upgrade import Upgrade, upgrade
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.producer.block_appender import BlockAppender, BlockName
from penstock.errors import CorruptData, Fenced, InvalidInput, OutcomeUnknown, StorageError
from penstock.records import values_to_arrow
from penstock.storage import LocalStore, MemoryStore, Object, ObjectStore, Reserve
from penstock.storage.object_store import Data
from penstock.testing import Fault, FaultyStore
from tests.buffer.manifest.samples import FOLDER, MANIFEST, Counted, head_of, locations, new
from tests.support.appended_blocks import NAME, Time, appender, queued, write
from tests.support.enqueuing import enqueue
from tests.support.hooked_store import HookedStore
from tests.support.processes import Parent, Start, let_go

MANIFESTS = ["native"]
LOST_REPLIES = (Fault.ERROR_AFTER, Fault.APPLIED_THEN_CONFLICT)
OPENDATA = ProducerConfig(manifest_format="opendata")


@pytest.fixture
def counted(fresh_name: str) -> Counted:
    return Counted(fresh_name)


def version_1(store: ObjectStore, count: int, *, acked: int = 0, epoch: int = 0) -> None:
    """A manifest of version 1 with so many entries, the first of them dequeued."""
    entries = [(f"data/{number}", (Metadata(0, number, b"%d" % number),)) for number in range(count)]
    manifest = OpenDataManifest.empty().append(entries).remove_through(acked - 1).with_epoch(epoch)
    store.put(MANIFEST, manifest.data)


def opendata(store: ObjectStore, group: str = "default") -> BufferQueue:
    return BufferQueue(store, MANIFEST, "producer", "opendata", group=group, sleep=lambda _: None, jitter=lambda: 0.0)


@pytest.mark.parametrize(
    ("count", "acked"), [(0, 0), (1, 0), (5, 0), (5, 2), (5, 5), (257, 0), (10_000, 0), (10_000, 9)]
)
def test_everything_is_as_it_was(counted: Counted, count: int, acked: int) -> None:
    version_1(counted, count, acked=acked, epoch=7)
    before = Manifest.read(counted)
    assert upgrade(counted) == Upgrade(is_new=True, entries=count - acked)
    after = Manifest.read(counted)
    assert (after.version, after.epoch, after.next_sequence) == (2, 7, count)
    assert [(one.sequence, one.location, one.metadata) for one in after.entries] == [
        (one.sequence, one.location, one.metadata) for one in before.entries
    ]
    assert {one.records for one in after.entries} <= {None}
    group = after.groups["default"]
    assert (list(after.groups), group.epoch, group.acked_through) == (["default"], 7, acked - 1)
    assert counted.largest_head <= 128 << 10


def test_sizes_are_asked_of_the_store(counted: Counted) -> None:
    version_1(counted, 3)
    counted.put("data/0", b"123")
    counted.put("data/2", b"12345")
    upgrade(counted)
    assert [entry.size for entry in Manifest.read(counted).entries] == [3, None, 5]


@pytest.mark.parametrize("count", [3, 3000])
def test_how_many_events_wait_is_not_known_before_what_was_upgraded_is_read(counted: Counted, count: int) -> None:
    version_1(counted, count)
    upgrade(counted)
    with Producer(counted) as producer:
        producer.produce([b"a", b"b"]).result()

    with Consumer(counted, ConsumerConfig(gc=False)) as consumer:
        waiting = [consumer.waiting_from(start) for start in (0, count - 1, count, count + 1)]

    assert [(one.batches, one.records) for one in waiting] == [(count + 1, None), (2, None), (1, 2), (0, 0)]


def test_a_second_upgrade_changes_nothing(counted: Counted) -> None:
    version_1(counted, 3)
    upgrade(counted)
    before = counted.get(MANIFEST)
    assert upgrade(counted) == Upgrade(is_new=False, entries=0)
    assert counted.get(MANIFEST).version == before.version


def test_where_nothing_is_or_no_manifest_nothing_is_made(counted: Counted) -> None:
    with pytest.raises(InvalidInput, match="no manifest"):
        upgrade(counted)
    counted.put(MANIFEST, b"garbage that is long enough to be one")
    with pytest.raises(CorruptData):
        upgrade(counted)
    assert [meta.path for meta in counted.list_objects()] == [MANIFEST]


@pytest.mark.parametrize("location", ["x", "../x", "a//b", "/abs/x", "é€", "."])
def test_a_location_that_is_no_path_does_not_hold_up_an_upgrade(counted: Counted, location: str) -> None:
    counted.put(MANIFEST, OpenDataManifest.empty().append([(location, ())]).data)
    assert upgrade(counted).entries == 1
    assert locations(counted) == [location]


# Consumers.


def test_a_consumer_goes_on_under_its_epoch(counted: Counted) -> None:
    with Producer(counted, OPENDATA) as producer:
        for number in range(4):
            producer.produce(b"%d" % number).result()
    with Consumer(counted, ConsumerConfig(gc=False)) as consumer:
        assert [one.sequence for one in consumer.next_descriptors(2)] == [0, 1]
        consumer.ack_through(0)
        upgrade(counted)
        assert [one.sequence for one in consumer.next_descriptors(9)] == [2, 3]
        consumer.ack_through(2)
    assert (head_of(counted).groups["default"].epoch, head_of(counted).groups["default"].acked_through) == (1, 2)
    with Consumer(counted, ConsumerConfig(gc=False)) as another:
        assert [one.sequence for one in another.next_descriptors(9)] == [3]


def test_a_consumer_that_was_fenced_stays_fenced(counted: Counted) -> None:
    version_1(counted, 4)
    fenced, active = opendata(counted), opendata(counted)
    old = fenced.claim("earliest", None, allow_gap=False).epoch
    epoch = active.claim("earliest", None, allow_gap=False).epoch
    upgrade(counted)
    calls: list[Callable[[], object]] = [lambda: fenced.read(old), lambda: fenced.dequeue(old, 1)]
    for call in calls:
        with pytest.raises(Fenced):
            call()
    assert active.dequeue(epoch, 1).first_sequence == 2


def test_a_consumer_of_version_1_may_be_upgraded_between_its_read_and_its_write(counted: Counted) -> None:
    version_1(counted, 4)
    faulty = FaultyStore(counted, rates={}, third_party=lambda *_: upgrade(counted), sleep=lambda _: None)
    queue = opendata(faulty)
    epoch = queue.claim("earliest", None, allow_gap=False).epoch
    faulty.inject(Fault.THIRD_PARTY_BEFORE, path=MANIFEST)
    assert queue.dequeue(epoch, 1).first_sequence == 2
    assert (head_of(counted).groups["default"].acked_through, head_of(counted).epoch) == (1, 1)


def test_a_group_has_to_wait_for_the_upgrade(counted: Counted) -> None:
    version_1(counted, 4)
    queue = opendata(counted, "audit")
    with pytest.raises(InvalidInput, match="`penstock manifest upgrade`"):
        queue.claim("earliest", None, allow_gap=False)
    upgrade(counted)
    assert queue.claim(2, None, allow_gap=False).first_sequence == 2


# An enqueue in doubt.


@pytest.mark.parametrize("count", [1, 300], ids=["small", "sealed"])
@pytest.mark.parametrize("fault", [*LOST_REPLIES, Fault.ERROR_BEFORE, Fault.LATE])
def test_an_enqueue_of_version_1_in_doubt_is_settled_after_the_upgrade(
    counted: Counted, fault: Fault, count: int
) -> None:
    version_1(counted, count)
    faulty = FaultyStore(counted, rates={}, third_party=lambda *_: upgrade(counted), sleep=lambda _: None, max_late=1)
    faulty.inject(fault, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)
    queue = opendata(faulty)
    done = enqueue(queue, new(2, 900))
    faulty.settle()
    assert done.sequences == {"data/900": count, "data/901": count + 1}
    assert locations(counted)[count:] == ["data/900", "data/901"]
    assert head_of(counted).next_sequence == count + 2


@pytest.mark.parametrize("times", [1, 3])
def test_a_read_that_fails_while_a_doubt_is_settled_fails_nobody(counted: Counted, times: int) -> None:
    version_1(counted, 300)
    faulty = FaultyStore(counted, rates={}, third_party=lambda *_: upgrade(counted), sleep=lambda _: None)
    faulty.inject(Fault.ERROR_AFTER, path=MANIFEST)
    faulty.inject(Fault.THIRD_PARTY_AFTER, path=MANIFEST)

    class FailsLater(Counted):
        """Reads of the head fail from the second after the upgrade on, for a while."""

        remaining = times

        def get(self, path: str) -> Object:
            found = faulty.get(path)
            if found.data[-4:] == b"PSTM" and path == MANIFEST:
                self.calls["of version 2"] += 1
                if self.calls["of version 2"] > 1 and self.remaining:
                    self.remaining -= 1
                    raise StorageError("for a moment nothing can be read")
            return found

        def put_if_match(self, path: str, data: Data, version: str) -> str:
            return faulty.put_if_match(path, data, version)

    queue = opendata(FailsLater(counted.url.removeprefix("memory://")))
    assert enqueue(queue, new(1, 900)).sequences == {"data/900": 300}
    assert locations(counted).count("data/900") == 1


def test_an_enqueue_that_meets_the_upgrade_is_appended_to_version_2(counted: Counted) -> None:
    version_1(counted, 2)
    queue = opendata(counted)
    queue.look()
    upgrade(counted)
    assert enqueue(queue, new(1, 900)).sequences == {"data/900": 2}
    assert len(head_of(counted).writers) == 1


# Blocks.


def block(store: ObjectStore, number: int) -> bool:
    appender = BlockAppender(store, ProducerConfig(manifest_format="opendata"))
    return appender.append([appender.write(values_to_arrow([b"a"])) for _ in range(2)], BlockName("query", number))


def test_a_named_block_that_is_sent_again_after_the_upgrade_is_not_appended(counted: Counted) -> None:
    assert block(counted, 3)
    assert block(counted, 4)
    upgrade(counted)
    assert {name: (one.transaction, one.first_sequence) for name, one in Writers(counted).list().items()} == {
        "query": (4, 2)
    }
    assert not block(counted, 4)
    with pytest.raises(InvalidInput, match="comes with transaction 3, and 4 is its last one"):
        block(counted, 3)
    assert block(counted, 5)
    assert head_of(counted).next_sequence == 6


def test_a_block_that_a_collector_of_version_1_has_on_its_list_is_written_again(fresh_name: str) -> None:
    """The collector looked before the upgrade, and deletes when the block is in the queue of version 2."""
    time = Time()
    memory = MemoryStore(fresh_name, clock=time)
    memory.put(MANIFEST, OpenDataManifest.empty().data)
    written = write(memory, b"a", b"b", time=time)
    time.passes(ConsumerConfig().gc_grace_period + 1)
    memory.put(MANIFEST, OpenDataManifest.empty().data)
    held = HookedStore(memory)

    def go_on() -> None:
        upgrade(memory)
        assert appender(memory, time).append(written, NAME)

    held.before("delete", go_on, times=1)
    assert GarbageCollector(held, clock=time).collect_once().deleted == 2

    assert queued(memory) == [b"a", b"b"]


@pytest.mark.parametrize(
    "payload",
    [
        b'{"writer":"svc","transaction":12,"trace":"x"}',
        b'{"writer": "svc", "transaction": 12}',
        b'{"transaction":12,"writer":"svc"}',
        b'{"writer":"svc","transaction":99999999999999999999999}',
        b'{"writer":"svc","transaction":-1}',
        b'{"writer":"","transaction":1}',
    ],
)
def test_metadata_that_look_like_a_blocks_make_no_writers(counted: Counted, payload: bytes) -> None:
    entry = ("data/0", (Metadata(0, 0, payload),))
    counted.put(MANIFEST, OpenDataManifest.empty().append([entry]).data)
    assert upgrade(counted).is_new
    assert Writers(counted).list() == {}


def test_a_consumer_that_was_fenced_before_the_upgrade_hears_when(counted: Counted) -> None:
    version_1(counted, 3)
    first, second = opendata(counted), opendata(counted)
    epoch = first.claim("earliest", None, allow_gap=False).epoch
    second.claim("earliest", None, allow_gap=False)
    upgrade(counted)
    with pytest.raises(Fenced, match=r"on version 1, before it was upgraded; its epoch is 2, and this one's 1"):
        first.read(epoch)


@pytest.mark.parametrize("spoiled", [b"\x81\xa1a\x01PSTM", b"PSTM", b"\x02\x00", b"\x03\x00", b"\x07"])
def test_what_is_no_head_is_no_upgraded_one(counted: Counted, spoiled: bytes) -> None:
    counted.put(MANIFEST, spoiled)
    with pytest.raises(CorruptData, match=rf"{counted.url}/{MANIFEST}: "):
        upgrade(counted)


def test_a_users_own_metadata_make_no_writers(counted: Counted) -> None:
    payloads = [
        b"",
        b"{",
        b"[]",
        b'{"writer":5,"transaction":1}',
        b'{"writer":"","transaction":1}',
        b"\xff",
        b"1" * 9_999,
    ]
    payloads += [b'{"writer":"w","transaction":-1}', b"[" * 10_000]
    entries = [(f"data/{place}", (Metadata(0, 0, payload),)) for place, payload in enumerate(payloads)]
    counted.put(MANIFEST, OpenDataManifest.empty().append(entries).data)
    upgrade(counted)
    assert Writers(counted).list() == {}


# The upgrade itself.


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", [*LOST_REPLIES, Fault.ERROR_BEFORE, Fault.LATE])
def test_an_upgrade_whose_reply_is_lost_has_happened_once(counted: Counted, fault: Fault, times: int) -> None:
    version_1(counted, 300)
    faulty = FaultyStore(counted, rates={}, sleep=lambda _: None)
    faulty.inject(fault, path=MANIFEST, times=1 if fault in LOST_REPLIES else times)
    assert upgrade(faulty) == Upgrade(is_new=True, entries=300)
    faulty.settle()
    assert (head_of(counted).revision, len(locations(counted))) == (1, 300)


def test_what_is_enqueued_while_it_upgrades_is_taken_over(counted: Counted) -> None:
    version_1(counted, 300)
    others = itertools.count(900)
    faulty = FaultyStore(
        counted, rates={}, third_party=lambda *_: enqueue(opendata(counted), new(1, next(others))), sleep=lambda _: None
    )
    faulty.inject(Fault.THIRD_PARTY_BEFORE, path=MANIFEST, times=3)
    assert upgrade(faulty) == Upgrade(is_new=True, entries=303)
    assert locations(counted)[300:] == ["data/900", "data/901", "data/902"]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_upgrade_that_is_killed_at_its_write_leaves_version_1_or_2_whole(counted: Counted, when: str) -> None:
    version_1(counted, 300)
    before = Manifest.read(counted)

    class Killing(Counted):
        def put_if_match(self, path: str, data: Data, version: str) -> str:
            if when == "after":
                super().put_if_match(path, data, version)
            raise Killed

    with pytest.raises(Killed):
        upgrade(Killing(counted.url.removeprefix("memory://")))
    found = Manifest.read(counted)
    assert found.version == (1 if when == "before" else 2)
    assert [one.location for one in found.entries] == [one.location for one in before.entries]
    assert upgrade(counted).is_new == (when == "before")
    assert [one.location for one in Manifest.read(counted).entries] == [one.location for one in before.entries]
    assert len(list(counted.list_objects(FOLDER))) == (2 if when == "before" else 1)  # one of them an orphan


# Who stays version 1.


def test_a_buffer_of_version_1_stays_so_whatever_its_users_prefer(counted: Counted) -> None:
    with Producer(counted, OPENDATA) as producer:
        producer.produce(b"0")
    with Producer(counted, ProducerConfig(manifest_format="native")) as producer:
        producer.produce(b"1")
    with Consumer(counted, ConsumerConfig(manifest_format="native", gc=False)) as consumer:
        assert [value for batch in consumer for value in batch.entries] == [b"0", b"1"]
        consumer.ack_through(0)
    found = Manifest.read(counted)
    assert (found.version, found.epoch, [one.sequence for one in found.entries]) == (1, 1, [1])


def test_version_2_is_never_made_version_1_again(counted: Counted) -> None:
    with Producer(counted) as producer:
        producer.produce(b"0")
    with Producer(counted, OPENDATA) as producer:
        producer.produce(b"1")
    with Consumer(counted, ConsumerConfig(manifest_format="opendata", gc=False)) as consumer:
        assert [value for batch in consumer for value in batch.entries] == [b"0", b"1"]
    assert Manifest.read(counted).version == 2


def test_a_new_buffer_is_version_2_unless_another_is_chosen(counted: Counted, fresh_name: str) -> None:
    with Producer(counted) as producer:
        producer.produce(b"0")
    other = MemoryStore(f"{fresh_name}-opendata")
    with Producer(other, OPENDATA) as producer:
        producer.produce(b"0")
    assert (Manifest.read(counted).version, Manifest.read(other).version) == (2, 1)


# Processes that go on while it is upgraded.


def produce(parent: Parent, root: str, name: str, count: int, at: int) -> None:
    """Produce `name-0`, `name-1` and so on, each a batch of its own; tell when it is at one of them."""
    config = ProducerConfig(manifest_format="opendata", flush_size_bytes=1, flush_interval=0.001)
    with Producer(LocalStore(root, sync=False), config) as producer:
        parent.tell("ready")
        parent.wait()
        for start in range(0, count, 4):
            handles = [producer.produce(f"{name}-{number}") for number in range(start, min(start + 4, count))]
            if start == at:
                parent.tell("there")
            for handle in handles:
                handle.result()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))])
def test_producers_go_on_while_it_is_upgraded_and_nothing_is_lost_or_doubled(
    tmp_path: Path, start: Start, seed: int
) -> None:
    dice = random.Random(seed)
    names, each = ["a", "b", "c"], 60
    store = LocalStore(tmp_path, sync=False)
    version_1(store, dice.choice([0, 1, 300]))
    already = Manifest.read(store).next_sequence
    children = [start(produce, str(tmp_path), name, each, dice.choice([0, 4, 20, 40])) for name in names]
    let_go(children)
    dice.shuffle(children)
    children[0].hear()
    assert upgrade(store).is_new
    for child in children[1:]:
        child.hear()
    for child in children:
        child.answer()
    found = Manifest.read(store)
    assert found.version == 2
    assert [entry.sequence for entry in found.entries] == list(range(already + len(names) * each))
    with Consumer(store, ConsumerConfig(gc=False), last_acked_sequence=already - 1 if already else None) as consumer:
        values = [value.decode() for batch in consumer for value in batch.entries]
    assert {name: [value for value in values if value.startswith(name)] for name in names} == {
        name: [f"{name}-{number}" for number in range(each)] for name in names
    }


def kill_at(parent: Parent, root: str, when: str) -> None:
    """Upgrade, tell the test at its write, and stay there."""

    class Stopping(LocalStore):
        def put_if_match(self, path: str, data: Data, version: str, *, reserve: Reserve | None = None) -> str:
            if when == "after":
                super().put_if_match(path, data, version, reserve=reserve)
            parent.tell(when)
            parent.wait()
            raise OutcomeUnknown("it was not killed")

    upgrade(Stopping(root))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_while_it_upgrades_leaves_a_whole_queue(
    tmp_path: Path, start: Start, when: str
) -> None:
    store = LocalStore(tmp_path)
    version_1(store, 300)
    child = start(kill_at, str(tmp_path), when)
    assert child.hear() == when
    child.kill()
    queue = opendata(store)
    assert enqueue(queue, new(1, 900)).sequences == {"data/900": 300}
    assert Manifest.read(store).version == (1 if when == "before" else 2)
    assert upgrade(store).is_new == (when == "before")
    assert len(locations(store)) == 301
