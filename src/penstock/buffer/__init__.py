"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.buffer.collector.collector import GarbageCollector
    from penstock.buffer.collector.report import GcReport
    from penstock.buffer.config import (
        DATA_PATH_PREFIX as DATA_PATH_PREFIX,
    )
    from penstock.buffer.config import (
        ConsumerConfig,
        ManifestFormat,
        ProducerConfig,
    )
    from penstock.buffer.consumer.consumer import Consumer
    from penstock.buffer.consumer.fetching import (
        ConsumedBatch,
        FetchHandle,
    )
    from penstock.buffer.consumer.fetching import (
        decode_object as decode_object,
    )
    from penstock.buffer.consumer.fetching import (
        largest_object as largest_object,
    )
    from penstock.buffer.consumer.fetching import (
        read_object as read_object,
    )
    from penstock.buffer.descriptors import BatchDescriptor, Metadata
    from penstock.buffer.format.batch import (
        BatchFormat,
        Compression,
        decode_batch,
        encode_batch,
    )
    from penstock.buffer.format.batch import (
        record_count as record_count,
    )
    from penstock.buffer.groups import (
        Groups as Groups,
    )
    from penstock.buffer.groups import (
        GroupStatus as GroupStatus,
    )
    from penstock.buffer.groups import (
        Writers as Writers,
    )
    from penstock.buffer.groups import (
        groups_in as groups_in,
    )
    from penstock.buffer.inspect import peek
    from penstock.buffer.locations import folder_of as folder_of
    from penstock.buffer.locations import is_data_path as is_data_path
    from penstock.buffer.manifest.contents import MANIFEST_PATH as MANIFEST_PATH
    from penstock.buffer.manifest.contents import Manifest
    from penstock.buffer.manifest.queue import BufferQueue as BufferQueue
    from penstock.buffer.manifest.queue import QueueView as QueueView
    from penstock.buffer.manifest.state import DEFAULT_GROUP as DEFAULT_GROUP
    from penstock.buffer.manifest.state import Backlog as Backlog
    from penstock.buffer.manifest.upgrade import needs_upgrade as needs_upgrade
    from penstock.buffer.manifest.upgrade import upgrade as upgrade
    from penstock.buffer.producer.block_appender import (
        BlockAppender as BlockAppender,
    )
    from penstock.buffer.producer.block_appender import (
        BlockName as BlockName,
    )
    from penstock.buffer.producer.block_appender import (
        WrittenObject as WrittenObject,
    )
    from penstock.buffer.producer.block_appender import (
        join_to_size as join_to_size,
    )
    from penstock.buffer.producer.producer import Producer
    from penstock.buffer.producer.write_handle import WriteHandle, Written
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.buffer.collector.collector": ("GarbageCollector",),
            "penstock.buffer.collector.report": ("GcReport",),
            "penstock.buffer.config": ("ConsumerConfig", "DATA_PATH_PREFIX", "ManifestFormat", "ProducerConfig"),
            "penstock.buffer.consumer.consumer": ("Consumer",),
            "penstock.buffer.consumer.fetching": (
                "ConsumedBatch",
                "FetchHandle",
                "decode_object",
                "largest_object",
                "read_object",
            ),
            "penstock.buffer.descriptors": ("BatchDescriptor", "Metadata"),
            "penstock.buffer.format.batch": (
                "BatchFormat",
                "Compression",
                "decode_batch",
                "encode_batch",
                "record_count",
            ),
            "penstock.buffer.groups": ("GroupStatus", "Groups", "Writers", "groups_in"),
            "penstock.buffer.inspect": ("peek",),
            "penstock.buffer.locations": ("folder_of", "is_data_path"),
            "penstock.buffer.manifest.contents": ("MANIFEST_PATH", "Manifest"),
            "penstock.buffer.manifest.queue": ("BufferQueue", "QueueView"),
            "penstock.buffer.manifest.state": ("Backlog", "DEFAULT_GROUP"),
            "penstock.buffer.manifest.upgrade": ("needs_upgrade", "upgrade"),
            "penstock.buffer.producer.block_appender": ("BlockAppender", "BlockName", "WrittenObject", "join_to_size"),
            "penstock.buffer.producer.producer": ("Producer",),
            "penstock.buffer.producer.write_handle": ("WriteHandle", "Written"),
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
    "Producer",
    "ProducerConfig",
    "WriteHandle",
    "Writers",
    "Written",
    "decode_batch",
    "encode_batch",
    "peek",
    "upgrade",
]
