"""The metadata log and its catalog on this machine's disk, every publish synced; segment events of 63 and 105 bytes.

Beside them stand the least that could be done by hand: `os.write` and `os.fdatasync` on one file; and for each record
a new file, which is written, synced and moved into place, and its directory synced. And a SQLite table with a
write-ahead log and `synchronous=FULL`, which syncs each commit. From many threads SQLite has one connection
behind a lock, which was no slower than one for each. None is a log that many hosts can write, or that lies
in a bucket: they are what the same disk does for a program that needs less.

- A publish of the object log creates a file: two syncs, of the file and of its directory, where an append has one. So
  the new file each is what a publish from one thread can reach at most, and the append is what no store of whole
  objects can reach. From many threads the publishers share objects.
- Replays begin with a new reader each, which has nothing in memory. Those "without roll-ups" read a log whose roll-ups
  were deleted. The catalog's are with decoding and applying each event; SQLite's peer reads rows and decodes nothing.
- Look-ups: a finished segment for an offset, among 100,000 of one partition, against the index of a SQLite table in
  memory, and against a walk over a list.
- Kafka, where `PENSTOCK_KAFKA` names the bootstrap servers of a broker, with the settings of `KafkaMetadataLog` and the
  client's defaults otherwise: it waits 5 ms for company (`linger.ms`), which is what one thread sees. A broker syncs
  nothing by itself: it relies on its replicas.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from bench.side_by_side import Contest, show
from bench.storage import bare_put
from penstock.errors import NotReady
from penstock.metalog import (
    InProcessMetadataLog,
    KafkaMetadataLog,
    MetadataLog,
    ObjectMetadataLog,
    PartitionStart,
    SegmentCatalog,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    encode_event,
)
from penstock.metalog.object.format import encode
from penstock.metalog.object.roll_ups import RollUps
from penstock.storage import LocalStore

THREADS = 64
PUBLISHES = 200
SEGMENTS = 100_000
OBJECT = 10  # records of an object in the logs that are replayed
LOOK_UPS = 20_000
LENGTH = 1000  # offsets of a segment
TP = TopicIdPartition(UUID(int=7), "orders", 0)

Work = Callable[[int], None]


def started(number: int) -> SegmentMetadata:
    first = number * LENGTH
    return SegmentMetadata(
        SegmentId(TP, UUID(int=number)),
        first,
        first + LENGTH - 1,
        1_700_000_000_000,
        1,
        1_700_000_000_000,
        1 << 30,
        SegmentState.COPY_SEGMENT_STARTED,
        {0: first},
    )


def finished(number: int) -> SegmentUpdate:
    return SegmentUpdate(SegmentId(TP, UUID(int=number)), 1_700_000_001_000, SegmentState.COPY_SEGMENT_FINISHED, 1)


def publishing(log: MetadataLog) -> Callable[[bytes], object]:
    return lambda payload: log.publish(0, payload)


def one_by_one(append: Callable[[bytes], object]) -> Work:
    payload = encode_event(started(1))

    def work(size: int) -> None:
        for _ in range(size):
            append(payload)

    return work


def from_threads(work: Work) -> Work:
    def all_of_them(size: int) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, [size // THREADS] * THREADS))

    return all_of_them


def replayed(open_log: Callable[[], MetadataLog]) -> Work:
    """All records of partition 0, from a new reader."""

    def work(size: int) -> None:
        with open_log() as log, log.subscribe([PartitionStart(0)]) as records:
            for offset in range(size):
                assert next(records).offset == offset

    return work


def last_read(place: Path) -> Work:
    """A new reader that asks where the log ends, and reads the record before."""

    def work(size: int) -> None:
        for _ in range(size):
            with ObjectMetadataLog(place) as log:
                (mark,) = log.high_water_marks()
                with log.subscribe([PartitionStart(0, mark - 1)]) as records:
                    assert next(records).offset == mark - 1 == SEGMENTS - 1

    return work


def caught_up(open_log: Callable[[], MetadataLog], snapshots: Path | None = None) -> Work:
    """A new catalog that has applied all records of partition 0; with snapshots it begins at the one that is there."""

    def work(_: int) -> None:
        with open_log() as log, SegmentCatalog(log, snapshot_dir=snapshots) as catalog:
            catalog.assign([0])
            assert wait_for(lambda: catalog.highest_offset(TP, 0)) == SEGMENTS // 2 * LENGTH - 1

    return work


def wait_for(read: Callable[[], int | None]) -> int | None:
    while True:
        try:
            return read()
        except NotReady:
            time.sleep(0.01)


class Bench:
    """Logs and files in new directories below `root`, closed with `stack`; and the contests between them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root = root
        self._stack = stack

    def publish(self) -> Contest:
        return Contest(
            "publish, 1 thread",
            PUBLISHES,
            {"Penstock": one_by_one(publishing(self._log()))} | self._other_appends(),
            rounds=15,
        )

    def publish_from_threads(self) -> Contest:
        others = {name: from_threads(work) for name, work in self._other_appends().items()}
        return Contest(
            f"publish, {THREADS} threads",
            THREADS * 50,
            {"Penstock": from_threads(one_by_one(publishing(self._log())))} | others,
            rounds=15,
            fewer={name: THREADS * (50 if "Kafka" in name else 10) for name in others},
        )

    def objects_per_publish(self) -> str:
        """How many objects a publish takes, from one thread and from many."""
        alone, together = self._log(), self._log()
        one_by_one(publishing(alone))(PUBLISHES)
        from_threads(one_by_one(publishing(together)))(THREADS * 50)
        ends = [log.partition_end(0) for log in (alone, together)]
        shares = [end.objects / end.offset for end in ends]
        return f"objects per publish: {shares[0]:.3f} from 1 thread, {shares[1]:.3f} from {THREADS}"

    def replay(self) -> Contest:
        rolled, plain = self._filled()
        database = self._rows(SEGMENTS)

        def rows(size: int) -> None:
            assert sum(1 for _ in database.execute("SELECT payload FROM log ORDER BY at")) == size

        return Contest(
            f"replay {SEGMENTS:,} records",
            SEGMENTS,
            {
                "Penstock, with roll-ups": replayed(lambda: ObjectMetadataLog(rolled)),
                "Penstock, without": replayed(lambda: ObjectMetadataLog(plain)),
                "SQLite, rows in order": rows,
            }
            | {name: replayed(opened) for name, opened in self._kafka_filled().items()},
            " records/s",
            rounds=3,
        )

    def last_record(self) -> Contest:
        rolled, plain = self._filled()
        (plain / "0" / "hint").unlink()
        database = self._rows(SEGMENTS)

        def row(size: int) -> None:
            for _ in range(size):
                database.execute("SELECT payload FROM log ORDER BY at DESC LIMIT 1").fetchone()

        return Contest(
            "open, read the last record",
            20,
            {
                "Penstock": last_read(rolled),
                "Penstock, no hint, no roll-ups": last_read(plain),
                "SQLite, last row, without opening": row,
            },
        )

    def catch_up(self) -> Contest:
        rolled, _ = self._filled()
        snapshots = self._fresh("snapshots")
        caught_up(lambda: ObjectMetadataLog(rolled), snapshots)(SEGMENTS)
        return Contest(
            f"a new catalog, {SEGMENTS:,} records",
            SEGMENTS,
            {
                "Penstock, from the log": caught_up(lambda: ObjectMetadataLog(rolled)),
                "Penstock, from a snapshot": caught_up(lambda: ObjectMetadataLog(rolled), snapshots),
            },
            " records/s",
            rounds=3,
        )

    def look_up(self) -> Contest:
        catalog = self._stack.enter_context(SegmentCatalog(self._of_segments(SEGMENTS), snapshot_dir=None))
        catalog.assign([0])
        wait_for(lambda: catalog.highest_offset(TP, 0))
        offsets = [random.Random(0).randrange(SEGMENTS * LENGTH) for _ in range(LOOK_UPS)]
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE segments (epoch INT, first INT, last INT, id BLOB, PRIMARY KEY (epoch, first))")
        ranges = [(number * LENGTH, number * LENGTH + LENGTH - 1, UUID(int=number)) for number in range(SEGMENTS)]
        rows = ((0, first, last, one.bytes) for first, last, one in ranges)
        database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?)", rows)
        question = "SELECT last, id FROM segments WHERE epoch = 0 AND first <= ? ORDER BY first DESC LIMIT 1"

        def ours(size: int) -> None:
            for offset in offsets[:size]:
                found = catalog.segment_for(TP, 0, offset)
                assert found is not None
                assert found.start_offset <= offset <= found.end_offset

        def sqlites(size: int) -> None:
            for offset in offsets[:size]:
                last, _ = database.execute(question, (offset,)).fetchone()
                assert offset <= last

        def walked(size: int) -> None:
            for offset in offsets[:size]:
                assert next(one for first, last, one in ranges if first <= offset <= last) is not None

        return Contest(
            f"look up, {SEGMENTS:,} segments",
            LOOK_UPS,
            {"Penstock": ours, "SQLite, index in memory": sqlites, "a walk over a list": walked},
            fewer={"a walk over a list": 50},
        )

    def _other_appends(self) -> dict[str, Work]:
        appends = {
            "write and fdatasync": self._file(),
            "a new file each, synced": self._files(),
            "SQLite, WAL, FULL": self._sqlite(),
        }
        appends |= {name: publishing(log) for name, log in self._kafka().items()}
        return {name: one_by_one(append) for name, append in appends.items()}

    def _log(self) -> ObjectMetadataLog:
        return self._stack.enter_context(ObjectMetadataLog(self._fresh("log"), 1))

    def _filled(self) -> tuple[Path, Path]:
        """A log of segments, each begun and then finished; and the same one without its roll-ups."""
        rolled, plain = self._root / "rolled", self._root / "plain"
        if not rolled.exists():
            store = LocalStore(rolled, sync=False)
            payloads = list(_payloads(SEGMENTS // 2))
            with ObjectMetadataLog(store, 1) as log:
                for number, first in enumerate(range(0, len(payloads), OBJECT)):
                    data = encode(first, number, os.urandom(16), payloads[first : first + OBJECT])
                    store.put_if_absent(f"0/{first:020d}", data)
                RollUps().roll_up(log._chains[0])
                log._chains[0].hint(len(payloads) - OBJECT)
            shutil.copytree(rolled, plain)
            shutil.rmtree(plain / "0" / "rollups")
        return rolled, plain

    def _of_segments(self, count: int) -> MetadataLog:
        log = InProcessMetadataLog(1)
        for payload in _payloads(count):
            log.publish(0, payload)
        return log

    def _file(self) -> Callable[[bytes], object]:
        file = os.open(self._fresh("file") / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._stack.callback(os.close, file)
        lock = threading.Lock()

        def append(data: bytes) -> None:
            with lock:
                os.write(file, data)
                os.fdatasync(file)

        return append

    def _files(self) -> Callable[[bytes], object]:
        place = self._fresh("files")
        numbers = itertools.count()
        lock = threading.Lock()

        def append(data: bytes) -> None:
            with lock:
                bare_put(place, f"{next(numbers):020d}", data)

        return append

    def _sqlite(self) -> Callable[[bytes], object]:
        database = self._table()
        lock = threading.Lock()

        def append(data: bytes) -> None:
            with lock:
                database.execute("INSERT INTO log (payload) VALUES (?)", (data,))

        return append

    def _rows(self, count: int) -> sqlite3.Connection:
        database = self._table()
        database.execute("BEGIN")
        database.executemany("INSERT INTO log (payload) VALUES (?)", ((one,) for one in _payloads(count // 2)))
        database.execute("COMMIT")
        return database

    def _table(self) -> sqlite3.Connection:
        place = self._fresh("sqlite") / "log"
        database = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        self._stack.callback(database.close)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE log (at INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB)")
        return database

    def _kafka(self) -> dict[str, MetadataLog]:
        if not (servers := os.environ.get("PENSTOCK_KAFKA")):
            return {}
        log = KafkaMetadataLog(servers, f"bench-{uuid.uuid4()}", create=True, partition_count=1)
        return {"Kafka, acks=all": self._stack.enter_context(log)}

    def _kafka_filled(self) -> dict[str, Callable[[], MetadataLog]]:
        if not (servers := os.environ.get("PENSTOCK_KAFKA")):
            return {}
        topic = f"bench-{uuid.uuid4()}"
        payloads = list(_payloads(SEGMENTS // 2))
        with KafkaMetadataLog(servers, topic, create=True, partition_count=1) as log, ThreadPoolExecutor(256) as pool:
            list(pool.map(lambda payload: log.publish(0, payload), payloads))
        return {"Kafka": lambda: KafkaMetadataLog(servers, topic)}

    def _fresh(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self._root))


def _payloads(segments: int) -> Iterator[bytes]:
    """Each segment is begun, and then finished: two events."""
    for number in range(segments):
        yield encode_event(started(number))
        yield encode_event(finished(number))


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        bench = Bench(Path(name), stack)
        if not os.environ.get("PENSTOCK_KAFKA"):
            print("Kafka is left out: PENSTOCK_KAFKA names no broker.")
        contests = [
            bench.publish(),
            bench.publish_from_threads(),
            bench.replay(),
            bench.last_record(),
            bench.catch_up(),
            bench.look_up(),
        ]
        show("The metadata log, on a local disk, synced", contests)
        print(bench.objects_per_publish())
