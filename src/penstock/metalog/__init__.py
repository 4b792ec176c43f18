"""The metadata log: partitioned, ordered, replayable; and the catalog of segments kept on top of it.

What lives here: the log's contract, its backends, Kafka's wire format for segment metadata, `SegmentCatalog`.

May import: `storage`, `records`, `errors`, `metrics`.
"""
