"""The metadata log: partitioned, ordered, replayable; and the catalog of segments kept on top of it.

What lives here: the log's contract, its backends, Kafka's wire format for segment metadata, `SegmentCatalog`.

May import: `storage`, `records`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.metalog.catalog import SegmentCatalog
    from penstock.metalog.in_process import InProcessMetadataLog
    from penstock.metalog.kafka_log import KafkaMetadataLog
    from penstock.metalog.log import MetadataLog, MetadataRecord, PartitionStart
    from penstock.metalog.object_log import ObjectMetadataLog
    from penstock.metalog.placing import metadata_partition_for
    from penstock.metalog.segment import (
        PartitionDelete,
        PartitionDeleteState,
        SegmentId,
        SegmentMetadata,
        SegmentState,
        SegmentUpdate,
        TopicIdPartition,
    )
    from penstock.metalog.subscription import Subscription
    from penstock.metalog.wire import decode_event, encode_event
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "penstock.metalog.catalog": ("SegmentCatalog",),
            "penstock.metalog.in_process": ("InProcessMetadataLog",),
            "penstock.metalog.kafka_log": ("KafkaMetadataLog",),
            "penstock.metalog.log": ("MetadataLog", "MetadataRecord", "PartitionStart"),
            "penstock.metalog.object_log": ("ObjectMetadataLog",),
            "penstock.metalog.placing": ("metadata_partition_for",),
            "penstock.metalog.segment": (
                "PartitionDelete",
                "PartitionDeleteState",
                "SegmentId",
                "SegmentMetadata",
                "SegmentState",
                "SegmentUpdate",
                "TopicIdPartition",
            ),
            "penstock.metalog.subscription": ("Subscription",),
            "penstock.metalog.wire": ("decode_event", "encode_event"),
        },
    )

__all__ = [
    "InProcessMetadataLog",
    "KafkaMetadataLog",
    "MetadataLog",
    "MetadataRecord",
    "ObjectMetadataLog",
    "PartitionDelete",
    "PartitionDeleteState",
    "PartitionStart",
    "SegmentCatalog",
    "SegmentId",
    "SegmentMetadata",
    "SegmentState",
    "SegmentUpdate",
    "Subscription",
    "TopicIdPartition",
    "decode_event",
    "encode_event",
    "metadata_partition_for",
]
