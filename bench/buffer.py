"""The buffer on this machine's disk, synced, with events of about 60 bytes.

Beside it stand the least that could be done by hand (lines collected, written to a file, synced, moved into place every
64 MiB), SQLite (a table, write-ahead log, one transaction for the same number of bytes), and for reading a directory of
Parquet files. None of them has an order between writers, a fence or an ack; SQLite is on one host. Of events that come
one by one each of them makes an object, a file or a transaction every tenth of a second, as a producer does by default.

What a batch costs by itself is measured in memory, with 1,000 events an object.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.side_by_side import Contest, show
from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import BatchFormat, decode_batch, encode_batch
from penstock.records import values_to_arrow

MANY = 3_000_000
FEW = 300_000
LIST = 1000
FLUSH = 64 << 20
FLUSH_SECONDS = 0.1
OBJECTS = 1000


def events(count: int) -> list[bytes]:
    return [b'{"user": %08d, "page": "/products/%06d", "took": %03d}' % (n, n % 9973, n % 997) for n in range(count)]


def produced(root: Path, lists: list[list[bytes]]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Producer(_fresh(root, "penstock")) as producer:
            for number in range(size // LIST):
                producer.produce(lists[number % len(lists)])

    return work


def produced_one_by_one(root: Path, some: list[bytes]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Producer(_fresh(root, "penstock")) as producer:
            for number in range(size):
                producer.produce(some[number % LIST])

    return work


def written_as_files(root: Path, lists: list[list[bytes]]) -> Callable[[int], None]:
    def work(size: int) -> None:
        place, held = _fresh(root, "files"), list[bytes]()
        bytes_held = files = 0
        for number in range(size // LIST):
            some = lists[number % len(lists)]
            held += some
            bytes_held += sum(map(len, some))
            if bytes_held >= FLUSH or number + 1 == size // LIST:
                _write_synced(place, f"{files}.jsonl", b"\n".join(held))
                held, bytes_held, files = [], 0, files + 1

    return work


def written_one_by_one(root: Path, some: list[bytes]) -> Callable[[int], None]:
    """Each event into a list, and the list into a file."""

    def work(size: int) -> None:
        place, held = _fresh(root, "files"), list[bytes]()
        due = time.monotonic() + FLUSH_SECONDS
        for number in range(size):
            held.append(some[number % LIST])
            if time.monotonic() >= due or number + 1 == size:
                _write_synced(place, f"{number}.jsonl", b"\n".join(held))
                held.clear()
                due = time.monotonic() + FLUSH_SECONDS

    return work


def inserted(root: Path, lists: list[list[bytes]]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with closing(_database(_fresh(root, "sqlite"))) as database:
            for number in range(size // LIST):
                database.executemany(
                    "INSERT INTO events VALUES (?)", [(event,) for event in lists[number % len(lists)]]
                )
                if (number + 1) * LIST * 60 % FLUSH < LIST * 60:
                    database.commit()
            database.commit()

    return work


def inserted_one_by_one(root: Path, some: list[bytes]) -> Callable[[int], None]:
    def work(size: int) -> None:
        with closing(_database(_fresh(root, "sqlite"))) as database:
            due = time.monotonic() + FLUSH_SECONDS
            for number in range(size):
                database.execute("INSERT INTO events VALUES (?)", (some[number % LIST],))
                if time.monotonic() >= due or number + 1 == size:
                    database.commit()
                    due = time.monotonic() + FLUSH_SECONDS

    return work


def objects_produced(some: list[bytes]) -> Callable[[int], None]:
    places = itertools.count()
    config = ProducerConfig(flush_size_bytes=sum(map(len, some)))

    def work(size: int) -> None:
        with Producer(f"memory://bench-{os.getpid()}-produced-{next(places)}", config) as producer:
            for _ in range(size):
                producer.produce(some)

    return work


def objects_consumed(some: list[bytes]) -> Callable[[int], None]:
    place, groups = f"memory://bench-{os.getpid()}-consumed", itertools.count()
    with Producer(place, ProducerConfig(flush_size_bytes=sum(map(len, some)))) as producer:
        for _ in range(OBJECTS):
            producer.produce(some)

    def work(size: int) -> None:
        count = 0
        with Consumer(place, ConsumerConfig(gc=False, group=f"round-{next(groups)}")) as consumer:
            for batch in consumer:
                count += len(batch.entries)
                consumer.ack(batch.sequence)
        assert count == size * len(some)

    return work


def read_back(place: str, expected: int) -> Callable[[int], None]:
    def work(size: int) -> None:
        with Consumer(place, ConsumerConfig(gc=False)) as consumer:
            rows = sum(batch.arrow.num_rows for batch in consumer)
        assert rows == size == expected

    return work


def read_parquet(place: Path) -> Callable[[int], None]:
    def work(size: int) -> None:
        rows = sum(pq.read_table(file, use_threads=False).num_rows for file in sorted(place.iterdir()))
        assert rows == size

    return work


def read_rows(place: Path) -> Callable[[int], None]:
    def work(size: int) -> None:
        with closing(sqlite3.connect(place / "events")) as database:
            rows = [row[0] for row in database.execute("SELECT value FROM events")]
        assert values_to_arrow(rows).num_rows == size

    return work


def _database(place: Path) -> sqlite3.Connection:
    database = sqlite3.connect(place / "events")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE events (value BLOB)")
    return database


def _write_synced(place: Path, name: str, data: bytes) -> None:
    with open(place / f"{name}.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(place / f"{name}.tmp", place / name)
    directory = os.open(place, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _fresh(root: Path, name: str) -> Path:
    """A new directory for each round; all of them are removed at the end, after the timed part."""
    return Path(tempfile.mkdtemp(prefix=name, dir=root))


def _prepare_to_read(root: Path, lists: list[list[bytes]]) -> None:
    with Producer(root / "read") as producer:
        for number in range(MANY // LIST):
            producer.produce(lists[number % len(lists)])
    (root / "parquet").mkdir()
    piece = MANY // 3
    flat = [event for number in range(piece // LIST) for event in lists[number % len(lists)]]
    for number in range(3):
        table = pa.Table.from_batches([values_to_arrow(flat)])
        pq.write_table(table, root / "parquet" / f"{number}.parquet", compression="none", use_dictionary=False)
    (root / "rows").mkdir()
    with closing(_database(root / "rows")) as database:
        for number in range(MANY // LIST):
            database.executemany("INSERT INTO events VALUES (?)", [(event,) for event in lists[number % len(lists)]])
        database.commit()


def _formats(some: list[bytes]) -> list[Contest]:
    arrow, opendata = BatchFormat.ARROW, BatchFormat.OPENDATA
    two, one = encode_batch(some, format=arrow), encode_batch(some, format=opendata)

    def encodes(shape: BatchFormat) -> Callable[[int], object]:
        return lambda _: encode_batch(some, format=shape)

    def both(shape: BatchFormat) -> Callable[[int], object]:
        return lambda _: decode_batch(encode_batch(some, format=shape))

    def decodes(data: bytes) -> Callable[[int], object]:
        return lambda _: decode_batch(data)

    def lists(data: bytes) -> Callable[[int], object]:
        return lambda _: decode_batch(data).column("value").to_pylist()

    def contest(title: str, ours: Callable[[int], object], other: Callable[[int], object]) -> Contest:
        return Contest(title, len(some), {"format 1 (opendata)": ours, "format 2 (arrow)": other}, " events/s")

    return [
        contest("encode", encodes(opendata), encodes(arrow)),
        contest("decode into Arrow", decodes(one), decodes(two)),
        contest("encode and decode", both(opendata), both(arrow)),
        contest("decode into a list", lists(one), lists(two)),
    ]


def run() -> None:
    lists = [events(LIST) for _ in range(50)]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        _prepare_to_read(root, lists)
        contests = [
            Contest(
                "produce 1,000 at a time",
                MANY,
                {
                    "Penstock": produced(root, lists),
                    "files by hand": written_as_files(root, lists),
                    "SQLite": inserted(root, lists),
                },
                " events/s",
            ),
            Contest(
                "produce one event a call",
                FEW,
                {
                    "Penstock": produced_one_by_one(root, lists[0]),
                    "files by hand": written_one_by_one(root, lists[0]),
                    "SQLite": inserted_one_by_one(root, lists[0]),
                },
                " calls/s",
            ),
            Contest(
                "read into Arrow",
                MANY,
                {
                    "Penstock": read_back(str(root / "read"), MANY),
                    "Parquet files": read_parquet(root / "parquet"),
                    "SQLite": read_rows(root / "rows"),
                },
                " events/s",
            ),
        ]
        show("The buffer, on a local disk, synced", contests)
    some = lists[0]
    in_memory = [
        Contest("produce 1,000 events", OBJECTS, {"Penstock": objects_produced(some)}, " objects/s"),
        Contest("consume 1,000 events as a list, and ack", OBJECTS, {"Penstock": objects_consumed(some)}, " objects/s"),
    ]
    show("Objects of 1,000 events, in memory", in_memory)
    show("Batch formats", _formats(events(1_000_000)))
