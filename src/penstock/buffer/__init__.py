"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `errors`, `metrics`.
"""

from penstock.buffer.batch import BatchFormat, Compression, decode_batch, encode_batch
from penstock.buffer.collector import GarbageCollector, GcReport
from penstock.buffer.config import ConsumerConfig, ManifestFormat, ProducerConfig
from penstock.buffer.consumer import Consumer
from penstock.buffer.descriptors import BatchDescriptor, Metadata
from penstock.buffer.fetching import ConsumedBatch, FetchHandle
from penstock.buffer.manifest import Manifest
from penstock.buffer.peeking import peek
from penstock.buffer.producer import Producer
from penstock.buffer.write_handle import WriteHandle, Written

__all__ = [
    "BatchDescriptor",
    "BatchFormat",
    "Compression",
    "ConsumedBatch",
    "Consumer",
    "ConsumerConfig",
    "FetchHandle",
    "GarbageCollector",
    "GcReport",
    "Manifest",
    "ManifestFormat",
    "Metadata",
    "Producer",
    "ProducerConfig",
    "WriteHandle",
    "Written",
    "decode_batch",
    "encode_batch",
    "peek",
]
