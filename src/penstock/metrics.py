"""Every metric the product has, defined once, in this table. They go to `prometheus_client`'s default registry.

Names start with `penstock_` and the package's name. A label `store` or `buffer` is a URL without its credentials,
`queue` is a path.

May import: nothing of Penstock.
"""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 0.5, 2.0, 5.0, 20.0, 60.0)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"penstock_{name}_total", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"penstock_{name}", text, labels)


def _seconds(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(f"penstock_{name}_seconds", text, labels, buckets=_SECONDS)


storage_operations = _counter(
    "storage_operations",
    "Calls of an object store, by how they ended: ok, or the (first) error's name.",
    "store",
    "operation",
    "outcome",
)
storage_operation_seconds = _seconds(
    "storage_operation",
    "How long a call of an object store took. Of a listing, without the time of its reader.",
    "store",
    "operation",
)
storage_bytes_read = _counter("storage_bytes_read", "Bytes of the objects that were read whole.", "store")
storage_bytes_written = _counter("storage_bytes_written", "Bytes of the objects that were written.", "store")

buffer_batches_flushed = _counter("buffer_batches_flushed", "Batches that a producer wrote and enqueued.", "buffer")
buffer_entries_flushed = _counter("buffer_entries_flushed", "Entries in those batches.", "buffer")
buffer_bytes_flushed = _counter("buffer_bytes_flushed", "Bytes of those batches before compression.", "buffer")
buffer_bytes_written = _counter(
    "buffer_bytes_written", "Bytes of those batches as written, after compression.", "buffer"
)
buffer_flush_duration = _seconds(
    "buffer_flush_duration", "From the start of encoding a batch until it was enqueued.", "buffer"
)
buffer_batches_collected = _counter("buffer_batches_collected", "Batches that were fetched and decoded.", "buffer")
buffer_entries_collected = _counter("buffer_entries_collected", "Entries in those batches.", "buffer")
buffer_bytes_collected = _counter("buffer_bytes_collected", "Bytes of those batches' objects.", "buffer")
buffer_fetch_duration = _seconds("buffer_fetch_duration", "How long fetching and decoding a batch took.", "buffer")
buffer_consumer_lag = _gauge(
    "buffer_consumer_lag_seconds",
    "Now minus the last ingestion time of the batch fetched last; never below 0.",
    "buffer",
)
buffer_queue_length = _gauge(
    "buffer_queue_length", "Entries in the manifest when it was read or written last.", "buffer"
)
buffer_group_lag = _gauge(
    "buffer_group_lag",
    "Entries of the manifest that a group has not acked, when it was read or written last.",
    "buffer",
    "group",
)
buffer_acks = _counter("buffer_acks", "Entries of the manifest that were acked.", "buffer")
buffer_descriptors_handed_out = _counter(
    "buffer_descriptors_handed_out", "Descriptors that next_descriptors handed out.", "buffer"
)
buffer_gc_files_deleted = _counter("buffer_gc_files_deleted", "Data objects that the collector deleted.", "buffer")
buffer_gc_files_failed = _counter(
    "buffer_gc_files_failed", "Data objects that the collector could not delete.", "buffer"
)
buffer_gc_duration = _seconds("buffer_gc_duration", "How long a cycle of the collector took.", "buffer")
buffer_enqueue_in_doubt = _counter(
    "buffer_enqueue_in_doubt",
    "Batches enqueued again because the manifest held no evidence of the try before.",
    "buffer",
)
buffer_manifest_writes = _counter(
    "buffer_manifest_writes", "Tries to write the manifest, by role: producer or consumer.", "buffer", "role"
)
buffer_manifest_conflicts = _counter(
    "buffer_manifest_conflicts", "Tries that lost a compare-and-set, by role.", "buffer", "role"
)

queue_pushes = _counter("queue_pushes", "Events pushed, and on disk.", "queue")
queue_acks = _counter("queue_acks", "Events acked, and deleted.", "queue")
queue_nacks = _counter("queue_nacks", "Events given back to be taken again.", "queue")
queue_corrupt_skipped = _counter(
    "queue_corrupt_skipped", "Corrupt keys and events that a pop, a poll or an iterate went past.", "queue"
)
queue_ready = _gauge("queue_ready", "Events on disk that are not in flight.", "queue")
queue_in_flight = _gauge("queue_in_flight", "Events that were taken, and neither acked nor given back.", "queue")
queue_oldest_age = _gauge(
    "queue_oldest_age_seconds",
    "How long ago the oldest event on disk was pushed, to a second; 0 if there is none.",
    "queue",
)

metalog_publishes = _counter("metalog_publishes", "Records that this process published.", "log")
metalog_objects = _counter(
    "metalog_objects", "Objects of an object log that this process wrote, with those records.", "log"
)
metalog_lost_races = _counter(
    "metalog_lost_races", "Objects that another process had written under the name first.", "log"
)

catalog_events_applied = _counter("catalog_events_applied", "Events of the metadata log that catalogs applied.")
catalog_events_skipped = _counter(
    "catalog_events_skipped",
    "Events that catalogs went past, by reason: corrupt, misplaced, refused or failed.",
    "reason",
)
catalog_pump_failures = _counter(
    "catalog_pump_failures", "How often reading the metadata log failed, and was tried again."
)
catalog_snapshots_written = _counter("catalog_snapshots_written", "Snapshots that catalogs wrote.")
catalog_snapshots_failed = _counter("catalog_snapshots_failed", "Snapshots that could not be written.")
catalog_snapshots_set_aside = _counter("catalog_snapshots_set_aside", "Snapshots that could not be used.")

inbound_paused = _gauge("inbound_paused", "How many engines hold their receiver at the moment.")
inbound_pauses = _counter("inbound_pauses", "How often an engine began to hold its receiver.")
byte_budget = _gauge("byte_budget", "How many bytes the next block may have; of the engine that asked last.")
recv_block_bytes = _gauge("recv_block_bytes", "How many bytes of payload the block received last has.")
pressure_ratio = _gauge("pressure_ratio", "The pressure, from 0 to 1, that was read last.")
engine_received = _counter(
    "engine_received", "Records that came from receivers, with those filtered or dead-lettered there."
)
engine_processed = _counter("engine_processed", "Records that were processed, and are with the sink.")
engine_errors = _counter("engine_errors", "Records that could not be parsed, and blocks that failed.")
engine_filtered = _counter("engine_filtered", "Records that a receiver's filters dropped.")
engine_dead_lettered = _counter("engine_dead_lettered", "Dead letters that were routed or discarded.")
engine_dropped_letters = _counter("engine_dropped_letters", "Dead letters that a process function dropped on purpose.")
engine_fallbacks = _counter("engine_fallbacks", "Batches that the first of two sinks refused, and the second got.")
engine_bytes = _counter("engine_bytes", "Bytes of payload that came from receivers.")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Counter | Gauge | Histogram))


def _renew_locks(metric: Any) -> None:
    """Open the locks of a metric, of its children by label, and of their values."""
    for one in (metric, *getattr(metric, "_metrics", {}).values()):
        for part in (one, *vars(one).values(), *getattr(one, "_buckets", ())):
            lock = getattr(part, "_lock", None)
            if lock is not None:
                lock._at_fork_reinit()


def _renew_all_locks() -> None:
    # A thread of the parent that counted at the moment of the fork holds a lock that nothing in the child releases.
    REGISTRY._lock._at_fork_reinit()  # type: ignore[attr-defined]
    for metric in ALL:
        _renew_locks(metric)


os.register_at_fork(after_in_child=_renew_all_locks)
