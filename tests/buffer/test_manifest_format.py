"""`PENSTOCK_MANIFEST_FORMAT`: the environment chooses the manifest of new buffers where no configuration does."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest.mock import patch

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import BlockAppender, Groups, Manifest
from penstock.engine import BufferSender
from penstock.errors import InvalidInput
from penstock.records import Record, values_to_arrow
from penstock.storage import ObjectStore
from tests.support.manifests import new_buffers_are

CONFIGS: list[Callable[..., ProducerConfig | ConsumerConfig]] = [ProducerConfig, ConsumerConfig]


def produce(store: ObjectStore) -> None:
    with Producer(store) as producer:
        producer.produce(b"event")


def send(store: ObjectStore) -> None:
    with BufferSender(store) as sender:
        sender.send([Record(b"event")])


def append(store: ObjectStore) -> None:
    appender = BlockAppender(store)
    appender.append([appender.write(values_to_arrow([b"event"]))])


def consume(store: ObjectStore) -> None:
    Consumer(store).close()


@pytest.mark.parametrize("config", CONFIGS)
def test_the_default_is_what_the_environment_asks_for(config: Callable[..., ProducerConfig], manifest: str) -> None:
    assert config().manifest_format == manifest
    with patch.dict(os.environ):
        del os.environ["PENSTOCK_MANIFEST_FORMAT"]
        assert config().manifest_format == "native"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("chosen", ["native", "opendata"])
def test_a_format_that_is_chosen_is_kept(config: Callable[..., ProducerConfig], chosen: str) -> None:
    assert config(manifest_format=chosen).manifest_format == chosen


@pytest.mark.parametrize("wrong", ["", "v1", "NATIVE"])
@pytest.mark.parametrize("create", [*CONFIGS, lambda: Groups("memory://wrong-format")])
def test_a_wrong_value_is_refused_with_the_name_of_the_variable(create: Callable[[], object], wrong: str) -> None:
    message = f"^PENSTOCK_MANIFEST_FORMAT must be one of native, opendata, not '{wrong}'"
    with new_buffers_are(wrong), pytest.raises(InvalidInput, match=message):
        create()


@pytest.mark.parametrize("create", [produce, send, append, consume])
def test_a_new_buffer_gets_the_manifest_that_the_environment_asks_for(
    memory: ObjectStore, create: Callable[[ObjectStore], None], manifest: str
) -> None:
    create(memory)
    assert Manifest.read(memory).version == {"opendata": 1, "native": 2}[manifest]
