"""A Ctrl-C at every line of a publish, one after the other: the log has no gap, and the next publish works."""

from __future__ import annotations

import itertools
from functools import partial

from penstock.metalog import ObjectMetadataLog
from penstock.metalog.object import writer
from penstock.storage import MemoryStore
from tests.metalog.object.stores import read_all
from tests.support.interrupts import Interrupts
from tests.support.waiting import Background


def test_a_log_goes_on_at_whatever_line_a_publish_was_interrupted(fresh_name: str) -> None:
    """The interrupted publish loses a race first, so that it goes through every step."""
    for number in itertools.count():
        store = MemoryStore(f"{fresh_name}-{number}")
        log, other = ObjectMetadataLog(store, 1), ObjectMetadataLog(store, 1)
        assert (log.publish(0, b"first"), other.publish(0, b"other")) == (0, 1)
        interrupts = Interrupts(number, writer.__file__.__eq__, lambda _, event: event == "line")
        interrupts.during(partial(log.publish, 0, b"interrupted"))
        offset = Background(log.publish, 0, b"next").result()
        payloads = read_all(other)
        assert payloads[offset:] == [b"next"]
        assert payloads[:offset] in ([b"first", b"other"], [b"first", b"other", b"interrupted"])
        Background(log.close).result()
        other.close()
        if not interrupts.came:
            assert len(payloads) == 4
            assert number > 30
            return
