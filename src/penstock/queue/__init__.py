"""Event queues on this host: `EventQueue` in memory, `DurableEventQueue` on RocksDB.

What lives here: the edge of a pipeline, where an application hands an event over and can forget it.

May import: `storage`, `records`, `errors`, `metrics`.
"""
