"""The buffer on an object store: batch formats, manifests, `Producer`, `Consumer`, the garbage collector.

What lives here: everything between a producer's `produce` and a consumer's `ack`, and the formats of both.

May import: `storage`, `records`, `errors`, `metrics`.
"""

from penstock.buffer.batch import BatchFormat, Compression, decode_batch, encode_batch
from penstock.buffer.descriptors import BatchDescriptor, Metadata
from penstock.buffer.manifest import Manifest

__all__ = ["BatchDescriptor", "BatchFormat", "Compression", "Manifest", "Metadata", "decode_batch", "encode_batch"]
