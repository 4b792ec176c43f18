"""Version 1 keeps no writers: what was dequeued before its producer read again is enqueued twice, and counted."""

from __future__ import annotations

from prometheus_client import REGISTRY

from penstock import Consumer, ConsumerConfig, ObjectStore
from penstock.errors import OutcomeUnknown
from tests.buffer.producer.conftest import OpenProducer
from tests.support.buffer_contents import queue
from tests.support.hooked_store import HookedStore
from tests.support.processes import PATIENCE

MANIFESTS = ["opendata"]


def test_without_evidence_it_is_enqueued_again_and_counted(store: ObjectStore, open_producer: OpenProducer) -> None:
    def consume_and_lose_the_reply() -> None:
        with Consumer(store, ConsumerConfig(gc=False)) as consumer:
            consumer.next_descriptors(10)
            consumer.ack_through(0)
        raise OutcomeUnknown("the reply was lost")

    hooked = HookedStore(store)
    hooked.after("write manifest", consume_and_lose_the_reply, times=1)
    handle = open_producer(hooked, flush_size_bytes=1).produce(b"x")
    assert handle.result(PATIENCE).sequence == 1
    assert [entry.location for entry in queue(store)] == [handle.result().location]
    assert REGISTRY.get_sample_value("penstock_buffer_enqueue_in_doubt_total", {"buffer": store.url}) == 1
