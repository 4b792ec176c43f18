"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `errors`, `metrics`.
"""
