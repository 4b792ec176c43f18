"""Valid batches, manifests, segment events, log objects and payloads, and where their length fields are."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock import Record
from penstock.buffer import Metadata, encode_batch
from penstock.buffer.format.trailer import BATCH_MAGIC, HEAD_MAGIC, SEGMENT_MAGIC, TRAILER_BYTES, trailer
from penstock.buffer.manifest.state import Group, Writer
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2.head import Entry as QueueEntry
from penstock.buffer.manifest.v2.head import Item, Reference, encode_head, unborn_head
from penstock.buffer.manifest.v2.segments import Segment, encode_segment
from penstock.metalog.catalog.segment import (
    PartitionDelete,
    PartitionDeleteState,
    SegmentEvent,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)
from penstock.metalog.catalog.wire import encode_event
from penstock.metalog.object.format import encode
from penstock.records import Entry, records_to_arrow

BATCH, MANIFEST, HEAD, SEGMENT, EVENT = "batch", "manifest", "head", "segment", "segment event"
LOG_OBJECT, PAYLOAD, DECODED_PAYLOAD = "log object", "payload", "decoded payload"

SEGMENT_NAME = f"{0:020}-{9:026}.seg"
"""The file name of every segment here: their checksums are of it too."""

Data = bytes  # within `Sample` the name is a method's

Field = tuple[int, int]
"""Where a number is, and how many bytes it has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A block and its footer. A packed one is compressed when it is put together, after the block was mutated.

    With a magic it is one of our own formats: behind the footer comes a checksum of whatever there is by then.
    """

    kind: str
    block: bytes
    footer: bytes
    block_fields: tuple[Field, ...]
    footer_fields: tuple[Field, ...]
    packed: bool = False
    magic: bytes = b""
    name: str = ""

    def bytes(self) -> bytes:
        """The whole object."""
        return self.ended((pack(self.block) if self.packed else self.block) + self.footer)

    def ended(self, body: Data) -> Data:
        """A body, or what became of it, with the trailer that is right for it."""
        return body + trailer(body, 2, self.magic, self.name) if self.magic else body


def pack(block: bytes) -> bytes:
    """One zstd frame."""
    return pa.Codec("zstd", 3).compress(block, asbytes=True)


def corpus() -> list[Sample]:
    """All samples, the same ones each time."""
    return [*_batches(), *_manifests(), *_native(), *_events(), *_log_objects(), *_payloads()]


def _batches() -> Iterator[Sample]:
    chance = random.Random(0)
    few: list[bytes] = [b"", b"hello", b"\x00" * 9]
    many = [chance.randbytes(chance.choice([0, 1, 7, 60])) for _ in range(700)]
    full = [
        Record(b"v", key=b"k", headers=[("a", b"1"), ("ä", b"")], timestamp_ms=5),
        Record(b"", headers=[], timestamp_ms=-1),
        Record(b"payload", key=b""),
    ]
    for packed in (False, True):
        for values in ([], [b""], few, [b"x"] * 310, many):
            yield _framed(values, packed)
        entries: list[list[Entry]]
        entries = [[], [*few], [*full], [*many], [*full * 150], [Record(b"t", timestamp_ms=1), b"u"]]
        for several in entries:
            yield _streamed([records_to_arrow(several)], packed)
        yield _streamed([records_to_arrow(part) for part in ([*few], [*many[:5]], [*few])], packed)
        yield _streamed([records_to_arrow(full), records_to_arrow(full[:1])], packed)


def _framed(values: list[bytes], packed: bool) -> Sample:
    data = encode_batch(values, format="opendata")
    starts, at = [], 0
    for value in values:
        starts.append(at)
        at += 4 + len(value)
    fields = tuple((start, 4) for start in [*starts[:40], *starts[-40:]])
    return _batch(data[:-7], fields, struct.pack("<BIH", packed, len(values), 1), packed)


def _streamed(batches: list[pa.RecordBatch], packed: bool) -> Sample:
    """Several record batches in one stream, which our encoder never writes, are valid too."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    block = sink.getvalue().to_pybytes()
    words = tuple((at, 4) for at in range(0, min(len(block), 2_048), 4))
    pairs = tuple((at, 8) for at in range(0, min(len(block), 2_048), 8))
    footer = struct.pack("<BI", packed, sum(batch.num_rows for batch in batches))
    return _batch(block, words + pairs, footer, packed, BATCH_MAGIC)


def _batch(block: bytes, fields: tuple[Field, ...], footer: bytes, packed: bool, magic: bytes = b"") -> Sample:
    footer_fields = tuple(field for field in ((0, 1), (1, 4), (5, 2)) if sum(field) <= len(footer))
    return Sample(BATCH, block, footer, fields, footer_fields, packed, magic)


def _manifests() -> Iterator[Sample]:
    chance = random.Random(1)
    several = [("ingest/a.batch", ()), ("é€", (Metadata(0, -1), Metadata(3, 1 << 40, b"payload")))]
    many = [
        (f"ingest/{number}", tuple(Metadata(at, number, chance.randbytes(at)) for at in range(number % 4)))
        for number in range(100)
    ]
    empty = OpenDataManifest.empty()
    yield _manifest(empty)
    yield _manifest(empty.append(several))
    yield _manifest(empty.append(many))
    yield _manifest(empty.append(many).remove_through(80).with_epoch(9))
    yield _manifest(empty.append(several).remove_through(1))


def _manifest(manifest: OpenDataManifest) -> Sample:
    block, footer = manifest.data[:-22], manifest.data[-22:]
    return Sample(MANIFEST, block, footer, tuple(_lengths(block)), ((0, 4), (4, 8), (12, 8), (20, 2)))


def _lengths(block: bytes) -> Iterator[Field]:
    at = 0
    while at < len(block):
        (length,) = struct.unpack_from("<I", block, at)
        yield from ((at, 4), (at + 4, 8), (at + 12, 2))
        place = at + 14 + int.from_bytes(block[at + 12 : at + 14], "little")
        yield place, 4
        if block[place : place + 4] != bytes(4):
            yield place + 16, 4
        at += 4 + int(length)


def _native() -> Iterator[Sample]:
    """Heads and segments of version 2. Every byte of MessagePack may be a length."""
    entries = tuple(
        QueueEntry(number, f"ingest/{number:026}.batch", 3, 400, tuple(Item(at, 1 << 40, b"m" * at) for at in range(2)))
        for number in range(12)
    )
    low = tuple(Reference(f"{4 * at:020}-{at:026}.seg", 4 * at, 4 * at + 3, 12, 1600, at, 0) for at in range(2))
    index = Reference(f"{0:020}-{9:026}.seg", 1, 7, 20, 3000, 0, 1)
    groups = {"default": Group(3, 5, "host:1", 1 << 40), "é": Group(2, 1)}
    writers = {"a": Writer(7, 3, 2, 1 << 40, False), "nightly": Writer(1 << 40, 9, 4, 0, True)}
    head = unborn_head(UUID(int=5)).changed(
        next_sequence=12, epoch=3, groups=groups, writers=writers, floor=1, floor_set_at=2
    )
    for tail, references in ((entries, ()), (entries[8:], low), (entries[8:], (index,))):
        yield _native_sample(HEAD, encode_head(msgspec.structs.replace(head, tail=tail, segments=references)))
    yield _native_sample(HEAD, encode_head(unborn_head(UUID(int=6))))
    yield _native_sample(SEGMENT, encode_segment(Segment(0, entries=entries), SEGMENT_NAME))
    yield _native_sample(SEGMENT, encode_segment(Segment(1, references=low), SEGMENT_NAME))


def _native_sample(kind: str, data: bytes) -> Sample:
    body = data[:-TRAILER_BYTES]
    fields = tuple((at, 1) for at in range(min(len(body), 400)))
    magic, name = (HEAD_MAGIC, "") if kind == HEAD else (SEGMENT_MAGIC, SEGMENT_NAME)
    return Sample(kind, body, b"", fields, (), magic=magic, name=name)


def _events() -> Iterator[Sample]:
    """Segment events. Any byte may be a length, and there is nothing behind the record."""
    tp = TopicIdPartition(UUID(int=7), "über", 3)
    segment = SegmentId(tp, UUID(int=9))
    started, finished, deleting, _ = SegmentState
    epochs = {epoch: 10 * epoch for epoch in range(140)}
    events: list[SegmentEvent] = [
        SegmentMetadata(segment, 0, 9, 1, 2, 3, 4, started, {0: 0}),
        SegmentMetadata(segment, 0, 9, 1, 2, 3, 4, finished, epochs, b"c" * 150, txn_index_empty=True),
        SegmentUpdate(segment, 1, finished, 2),
        SegmentUpdate(segment, 1, deleting, 2, b"custom"),
        PartitionDelete(tp, PartitionDeleteState.STARTED, 1, 2),
    ]
    for event in events:
        data = encode_event(event)
        yield Sample(EVENT, data, b"", tuple((at, 1) for at in range(len(data))), ())


def _log_objects() -> Iterator[Sample]:
    """Objects of the metadata log. The numbers of the header are before its nonce."""
    for first, number, payloads in ((0, 0, [b"one"]), (7, 3, [b"", b"two" * 9, b"3"]), (1 << 40, 5, [b"x"] * 40)):
        data = encode(first, number, b"n" * 16, payloads)
        header = ((4, 1), (5, 8), (13, 8), (21, 4), (25, 8))
        yield Sample(LOG_OBJECT, data, b"", (*header, *((53 + 4 * at, 4) for at in range(len(payloads)))), ())


def _payloads() -> Iterator[Sample]:
    """Payloads of events in JSON and MessagePack, with everything that a column can be made of."""
    events: list[dict[str, object]] = [
        {"a": 1, "b": "text", "c": None, "d": 1.5, "e": True},
        {"a": -(1 << 63), "f": [[1], [2, 3]], "g": {"h": {"i": [{"j": "é"}]}}, "k": []},
        {"t": "2026-01-01T00:00:00.123456Z", "n": "12345678901234567890.12", "long": "x" * 300},
    ]
    for event in events:
        for data in (msgspec.json.encode(event), msgspec.msgpack.encode(event)):
            yield Sample(PAYLOAD, data, b"", tuple((at, 1) for at in range(min(len(data), 200))), ())
    # In the Avro and the Protobuf of `targets`, and CSV.
    avro = b"\x02\x00\x00\x02\x02\x01\x00" + b"\x04\x00\x80\x01\x06\x01\x02\x03\x02\x02k\x02v\x00"
    for data in (avro, b"\x0a\x11\x0a\x01a\x12\x0c\x2a\x0a\x0a\x08\x0a\x01b\x12\x03\x1a\x01x", b'1,"say ""hi"""'):
        yield Sample(DECODED_PAYLOAD, data, b"", tuple((at, 1) for at in range(len(data))), ())
