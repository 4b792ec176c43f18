"""Penstock: durable event pipelines for Spark, without a broker."""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock import buffer, errors, metrics, queue, records, storage
    from penstock.buffer import (
        BatchDescriptor,
        ConsumedBatch,
        Consumer,
        ConsumerConfig,
        FetchHandle,
        Metadata,
        NewObject,
        Producer,
        ProducerConfig,
        WriteHandle,
        Written,
        append,
        new_location,
        peek,
    )
    from penstock.queue import DurableEvent, DurableEventQueue, EventQueue
    from penstock.records import Record
    from penstock.storage import ObjectStore, open_store
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "buffer": "BatchDescriptor ConsumedBatch Consumer ConsumerConfig FetchHandle Metadata NewObject "
            "Producer ProducerConfig WriteHandle Written append new_location peek",
            "queue": "DurableEvent DurableEventQueue EventQueue",
            "records": "Record",
            "storage": "ObjectStore open_store",
        },
        submodules=("buffer", "errors", "metrics", "queue", "records", "storage"),
    )

__version__ = "0.1.0"

__all__ = [
    "BatchDescriptor",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "DurableEvent",
    "DurableEventQueue",
    "EventQueue",
    "FetchHandle",
    "Metadata",
    "NewObject",
    "ObjectStore",
    "Producer",
    "ProducerConfig",
    "Record",
    "WriteHandle",
    "Written",
    "append",
    "new_location",
    "open_store",
    "peek",
]
