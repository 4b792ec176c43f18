"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.buffer.collector.collector import GarbageCollector, GcReport
    from penstock.buffer.config import (
        DATA_PATH_PREFIX,
        FLUSH_SIZE_BYTES,
        GC_GRACE_SECONDS,
        ConsumerConfig,
        ManifestFormat,
        ProducerConfig,
    )
    from penstock.buffer.consumer.consumer import Consumer
    from penstock.buffer.consumer.fetching import ConsumedBatch, FetchHandle, decode_object, largest_object, read_object
    from penstock.buffer.descriptors import BatchDescriptor, Metadata
    from penstock.buffer.format.batch import BatchFormat, Compression, decode_batch, encode_batch, record_count
    from penstock.buffer.groups import Groups, GroupStatus, Writers, groups_in
    from penstock.buffer.inspect import peek
    from penstock.buffer.locations import folder_of, is_data_path
    from penstock.buffer.manifest.contents import MANIFEST_PATH, Manifest
    from penstock.buffer.manifest.queue import BufferQueue, QueueView
    from penstock.buffer.manifest.state import DEFAULT_GROUP, Backlog, Waiting
    from penstock.buffer.manifest.upgrade import needs_upgrade, upgrade
    from penstock.buffer.producer.appending import NewObject, append, new_location
    from penstock.buffer.producer.block_appender import BlockAppender, BlockName, WrittenObject, join_to_size
    from penstock.buffer.producer.producer import Producer
    from penstock.buffer.producer.write_handle import WriteHandle, Written
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "collector.collector": "GarbageCollector GcReport",
            "config": "ConsumerConfig DATA_PATH_PREFIX FLUSH_SIZE_BYTES GC_GRACE_SECONDS ManifestFormat ProducerConfig",
            "consumer.consumer": "Consumer",
            "consumer.fetching": "ConsumedBatch FetchHandle decode_object largest_object read_object",
            "descriptors": "BatchDescriptor Metadata",
            "format.batch": "BatchFormat Compression decode_batch encode_batch record_count",
            "groups": "GroupStatus Groups Writers groups_in",
            "inspect": "peek",
            "locations": "folder_of is_data_path",
            "manifest.contents": "MANIFEST_PATH Manifest",
            "manifest.queue": "BufferQueue QueueView",
            "manifest.state": "Backlog DEFAULT_GROUP Waiting",
            "manifest.upgrade": "needs_upgrade upgrade",
            "producer.appending": "NewObject append new_location",
            "producer.block_appender": "BlockAppender BlockName WrittenObject join_to_size",
            "producer.producer": "Producer",
            "producer.write_handle": "WriteHandle Written",
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
    "GroupStatus",
    "Groups",
    "Manifest",
    "ManifestFormat",
    "Metadata",
    "NewObject",
    "Producer",
    "ProducerConfig",
    "WriteHandle",
    "Writers",
    "Written",
    "append",
    "decode_batch",
    "encode_batch",
    "new_location",
    "peek",
    "upgrade",
]
