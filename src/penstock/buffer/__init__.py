"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.buffer.batch import BatchFormat, Compression, decode_batch, encode_batch
    from penstock.buffer.collector import GarbageCollector
    from penstock.buffer.collector_report import GcReport
    from penstock.buffer.config import ConsumerConfig, ManifestFormat, ProducerConfig
    from penstock.buffer.consumer import Consumer
    from penstock.buffer.descriptors import BatchDescriptor, Metadata
    from penstock.buffer.fetching import ConsumedBatch, FetchHandle
    from penstock.buffer.manifest import Manifest
    from penstock.buffer.peeking import peek
    from penstock.buffer.producer import Producer
    from penstock.buffer.write_handle import WriteHandle, Written
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.buffer.batch": ("BatchFormat", "Compression", "decode_batch", "encode_batch"),
            "penstock.buffer.collector": ("GarbageCollector",),
            "penstock.buffer.collector_report": ("GcReport",),
            "penstock.buffer.config": ("ConsumerConfig", "ManifestFormat", "ProducerConfig"),
            "penstock.buffer.consumer": ("Consumer",),
            "penstock.buffer.descriptors": ("BatchDescriptor", "Metadata"),
            "penstock.buffer.fetching": ("ConsumedBatch", "FetchHandle"),
            "penstock.buffer.manifest": ("Manifest",),
            "penstock.buffer.peeking": ("peek",),
            "penstock.buffer.producer": ("Producer",),
            "penstock.buffer.write_handle": ("WriteHandle", "Written"),
        },
    )

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
