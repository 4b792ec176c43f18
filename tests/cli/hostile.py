"""A buffer, a metadata log and a pipeline file in which every text that another could have written is hostile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from penstock import Producer, ProducerConfig, Record
from penstock.buffer.manifest.state import Group, Writer
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v2.head import Entry, Item, decode_head, encode_head
from penstock.core.checked_json import encode_fields
from penstock.metalog import ObjectMetadataLog, SegmentId, SegmentUpdate, TopicIdPartition, encode_event
from penstock.metalog.catalog.segment import SegmentState
from penstock.queue import DurableEventQueue
from penstock.storage import LocalStore

EVERY = "".join(
    map(chr, [*range(1, 0x20), *range(0x7F, 0xA0), 0x200E, 0x2028, 0x2029, 0x202E, 0x2066, 0xFEFF, 0xE0001])
)
INJECTED = "INJECTED"
HOSTILE = f"[red]x[/red]\x1b[2J\x1b]0;title\x07{EVERY}\r\n{INJECTED}: done\n"
MISSING = 0  # the sequence of an entry whose data is not there


@dataclass(frozen=True)
class Places:
    """Where everything is."""

    buffer: Path
    old: Path
    owned: Path
    log: Path
    queue: Path
    pipeline: Path


def make_places(root: Path, text: str) -> Places:
    """Write everything, with this text wherever there is text."""
    places = Places(*(root / name for name in ("buffer", "old", "owned", "log", "queue", "pipeline.toml")))
    _native_buffer(places.buffer, text)
    _opendata_buffer(places.old, text)
    owner = encode_fields({"version": 1, "id": str(UUID(int=1)), "manifest": text, "prefix": text})
    LocalStore(places.owned, sync=False).put("ingest/.owner", owner)
    _metadata_log(places.log, text)
    with DurableEventQueue(places.queue) as queue:
        queue.push(text.encode())
    places.pipeline.write_bytes(_pipeline(text))
    return places


def _native_buffer(where: Path, text: str) -> None:
    store = LocalStore(where, sync=False)
    record = Record(text.encode(), key=text.encode(), headers=[(text, text.encode())])
    with Producer(store, ProducerConfig(flush_interval=0)) as producer:
        producer.produce([record, b"\xff" + text.encode()], metadata=text.encode()).result()
    born = decode_head(store.get("ingest/manifest").data)
    (entry,) = born.tail
    missing = Entry(MISSING + 1, text, 1, 1, (Item(0, 0, text.encode()),))
    head = born.changed(
        next_sequence=2,
        epoch=1,
        tail=(entry, missing),
        groups={"default": Group(1, -1, text, 1), text: Group(1, -1, text, 1)},
        writers={text: Writer(1, 0, 0, 1, True)},
    )
    store.put("ingest/manifest", encode_head(head))
    (where / "ingest" / (text.replace("\0", "").replace("/", "")[:40] + ".batch")).write_bytes(b"")


def _opendata_buffer(where: Path, text: str) -> None:
    manifest = OpenDataManifest.empty().append([(text, ())])
    LocalStore(where, sync=False).put("ingest/manifest", manifest.data)


def _metadata_log(where: Path, text: str) -> None:
    store = LocalStore(where, sync=False)
    tp = TopicIdPartition(UUID(int=1), text, 0)
    with ObjectMetadataLog(store, 3) as log:
        log.publish(0, encode_event(SegmentUpdate(SegmentId(tp, UUID(int=2)), 0, SegmentState(1), 0)))
        log.publish(0, text.encode())
    store.put("1/" + "0" * 20, text.encode())
    store.put("2/hint", text.encode())


def _pipeline(text: str) -> bytes:
    quoted = "".join(f"\\u{ord(char):04X}" if ord(char) < 0x10000 else f"\\U{ord(char):08X}" for char in text)
    return f'source = "memory://x"\n"{quoted}" = "{quoted}"\n'.encode()
