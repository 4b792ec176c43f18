"""A backlog of any size, created quickly: its data objects are one file with many names, and each is read in full."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.buffer import ProducerConfig
from penstock.buffer.locations import Names
from penstock.buffer.producer.block_appender import BlockAppender, WrittenObject
from penstock.records import values_to_arrow
from penstock.storage import open_store

MIB = 1 << 20
OBJECT = 64 * MIB  # a data object, decoded: the largest that a producer makes by default
COLUMNS = "id bigint, event string, text string"


@dataclass(frozen=True)
class Backlog:
    """A folder with a buffer in it, and how many records that has."""

    folder: Path
    rows: int


def make_backlog(folder: Path, size: int, compression: str = "none") -> Backlog:
    """A buffer of JSON records of about 1 KiB, that many bytes of them when they are decoded."""
    line = b'{"id": %12d, "event": "click", "text": "%s"}'
    text = b"a visitor looked at a page of products " * 25
    values = [line % (number, text) for number in range(OBJECT // len(line % (0, text)))]
    events = folder / "events"
    config = ProducerConfig(compression=compression)
    appender = BlockAppender(open_store(events), config)
    first = appender.write(values_to_arrow(values))
    objects, names = [first], Names()
    for _ in range(size // OBJECT - 1):
        location = names.location(config.data_path_prefix)
        os.link(events / first.location, events / location)
        objects.append(WrittenObject(location, first.records, first.size, first.began, first.is_guarded))
    assert appender.append(objects)
    return Backlog(folder, first.records * len(objects))
