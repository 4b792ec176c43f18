"""A buffer that is deleted under those who have it open: they say so, and do not go on with the next one.

A manifest of version 1 holds no id: it is the same buffer for as long as the id beside it is there.
"""

from __future__ import annotations

import pytest

from penstock.buffer import Consumer, ConsumerConfig, Manifest, Producer
from penstock.buffer.manifest.queue import BufferQueue
from penstock.errors import Fenced, InvalidInput
from penstock.storage import ObjectStore
from tests.buffer.test_buffer_id import MANIFEST, produce
from tests.support.filled_buffers import each_alone
from tests.support.processes import PATIENCE

MANIFESTS = ["native"]


def test_a_producer_whose_buffer_is_deleted_and_created_again_fails_its_handles(memory: ObjectStore) -> None:
    with Producer(memory, each_alone()) as producer:
        producer.produce(b"one").result(PATIENCE)
        first = Manifest.read(memory).id
        memory.delete([MANIFEST])
        BufferQueue(memory, MANIFEST, "producer").identify(create=True)
        second = Manifest.read(memory).id
        with pytest.raises(InvalidInput, match=f"is the buffer {second} now, and was {first}"):
            producer.produce(b"two").result(PATIENCE)
    assert Manifest.read(memory).entries == ()


def test_a_producer_whose_buffer_is_deleted_does_not_create_it_again(memory: ObjectStore) -> None:
    with Producer(memory, each_alone()) as producer:
        producer.produce(b"one").result(PATIENCE)
        memory.delete([MANIFEST])
        with pytest.raises(InvalidInput, match="is gone, and was"):
            producer.produce(b"two").result(PATIENCE)
    assert Manifest.read(memory).id is None


def test_a_consumer_of_a_buffer_that_was_deleted_is_fenced_though_its_epoch_was_given_again(
    memory: ObjectStore,
) -> None:
    produce(memory, b"one")
    consumer = Consumer(memory, ConsumerConfig(gc=False))
    memory.delete([meta.path for meta in memory.list_objects()])
    produce(memory, b"two")
    with Consumer(memory, ConsumerConfig(gc=False)):
        with pytest.raises(Fenced, match="another buffer"):
            consumer.next_batch()
        with pytest.raises(Fenced, match="another buffer"):
            consumer.close()
