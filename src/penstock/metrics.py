"""Every metric the product has, defined once, in this table. They go to `prometheus_client`'s default registry.

Names start with `penstock_` and the room's name. A label `store` or `buffer` is a URL without its credentials.

May import: nothing of Penstock.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

storage_operations = Counter(
    "penstock_storage_operations_total",
    "Calls of an object store, by how they ended: ok, or the (first) error's name.",
    ["store", "operation", "outcome"],
)
storage_operation_seconds = Histogram(
    "penstock_storage_operation_seconds",
    "How long a call of an object store took. Of a listing, without the time of whoever reads it.",
    ["store", "operation"],
    buckets=(0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2.0, 5.0, 20.0, 60.0),
)
storage_bytes_read = Counter(
    "penstock_storage_bytes_read_total", "Bytes of the objects that were read whole.", ["store"]
)
storage_bytes_written = Counter(
    "penstock_storage_bytes_written_total", "Bytes of the objects that were written.", ["store"]
)

ALL = (storage_operations, storage_operation_seconds, storage_bytes_read, storage_bytes_written)
