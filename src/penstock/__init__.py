"""Penstock: durable event pipelines for Spark, without a broker."""

from penstock.buffer import (
    BatchDescriptor,
    ConsumedBatch,
    Consumer,
    ConsumerConfig,
    FetchHandle,
    Metadata,
    Producer,
    ProducerConfig,
    WriteHandle,
    Written,
    peek,
)
from penstock.queue import DurableEvent, DurableEventQueue, EventQueue
from penstock.records import Record
from penstock.storage import ObjectStore, open_store

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
    "ObjectStore",
    "Producer",
    "ProducerConfig",
    "Record",
    "WriteHandle",
    "Written",
    "open_store",
    "peek",
]
