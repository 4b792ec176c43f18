"""The metadata log: partitioned, ordered, replayable; and the catalog of log segments that is kept on top of it.

What lives here: the log's contract, its backends, Kafka's wire format for segment metadata, `SegmentCatalog`.

May import: `storage`, `records`, `core`, `errors`, `metrics`.
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.metalog.catalog.catalog import SegmentCatalog
    from penstock.metalog.catalog.placing import metadata_partition_for
    from penstock.metalog.catalog.segment import (
        PartitionDelete,
        PartitionDeleteState,
        SegmentId,
        SegmentMetadata,
        SegmentState,
        SegmentUpdate,
        TopicIdPartition,
    )
    from penstock.metalog.catalog.wire import decode_event, encode_event
    from penstock.metalog.in_process import InProcessMetadataLog
    from penstock.metalog.kafka.config import KafkaConfig, kafka_client
    from penstock.metalog.kafka.log import KafkaMetadataLog
    from penstock.metalog.log import MetadataLog
    from penstock.metalog.object.chain import PartitionEnd
    from penstock.metalog.object.log import ObjectMetadataLog
    from penstock.metalog.object.settings import ObjectLogSettings
    from penstock.metalog.records import MetadataRecord, PartitionStart
    from penstock.metalog.subscription import Subscription
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "catalog.catalog": "SegmentCatalog",
            "catalog.placing": "metadata_partition_for",
            "catalog.segment": "PartitionDelete PartitionDeleteState SegmentId SegmentMetadata "
            "SegmentState SegmentUpdate TopicIdPartition",
            "catalog.wire": "decode_event encode_event",
            "in_process": "InProcessMetadataLog",
            "kafka.config": "KafkaConfig kafka_client",
            "kafka.log": "KafkaMetadataLog",
            "log": "MetadataLog",
            "object.chain": "PartitionEnd",
            "object.log": "ObjectMetadataLog",
            "object.settings": "ObjectLogSettings",
            "records": "MetadataRecord PartitionStart",
            "subscription": "Subscription",
        },
    )

__all__ = [
    "InProcessMetadataLog",
    "KafkaMetadataLog",
    "MetadataLog",
    "MetadataRecord",
    "ObjectLogSettings",
    "ObjectMetadataLog",
    "PartitionDelete",
    "PartitionDeleteState",
    "PartitionEnd",
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
