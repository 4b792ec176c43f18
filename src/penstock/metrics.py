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

storage_operations = Counter(
    "penstock_storage_operations_total",
    "Calls of an object store, by how they ended: ok, or the (first) error's name.",
    ["store", "operation", "outcome"],
)
storage_operation_seconds = Histogram(
    "penstock_storage_operation_seconds",
    "How long a call of an object store took. Of a listing, without the time of its reader.",
    ["store", "operation"],
    buckets=_SECONDS,
)
storage_bytes_read = Counter(
    "penstock_storage_bytes_read_total", "Bytes of the objects that were read whole.", ["store"]
)
storage_bytes_written = Counter(
    "penstock_storage_bytes_written_total", "Bytes of the objects that were written.", ["store"]
)

buffer_batches_flushed = Counter(
    "penstock_buffer_batches_flushed_total", "Batches that a producer wrote and enqueued.", ["buffer"]
)
buffer_entries_flushed = Counter("penstock_buffer_entries_flushed_total", "Entries in those batches.", ["buffer"])
buffer_bytes_flushed = Counter(
    "penstock_buffer_bytes_flushed_total", "Bytes of those batches before compression.", ["buffer"]
)
buffer_bytes_written = Counter(
    "penstock_buffer_bytes_written_total", "Bytes of those batches as written, after compression.", ["buffer"]
)
buffer_flush_duration = Histogram(
    "penstock_buffer_flush_duration_seconds",
    "From the start of encoding a batch until it was enqueued.",
    ["buffer"],
    buckets=_SECONDS,
)
buffer_batches_collected = Counter(
    "penstock_buffer_batches_collected_total", "Batches that were fetched and decoded.", ["buffer"]
)
buffer_entries_collected = Counter("penstock_buffer_entries_collected_total", "Entries in those batches.", ["buffer"])
buffer_bytes_collected = Counter(
    "penstock_buffer_bytes_collected_total", "Bytes of those batches' objects.", ["buffer"]
)
buffer_fetch_duration = Histogram(
    "penstock_buffer_fetch_duration_seconds",
    "How long fetching and decoding a batch took.",
    ["buffer"],
    buckets=_SECONDS,
)
buffer_consumer_lag = Gauge(
    "penstock_buffer_consumer_lag_seconds",
    "Now minus the last ingestion time of the batch fetched last; never below 0.",
    ["buffer"],
)
buffer_queue_length = Gauge(
    "penstock_buffer_queue_length", "Entries in the manifest when it was read or written last.", ["buffer"]
)
buffer_group_lag = Gauge(
    "penstock_buffer_group_lag",
    "Entries of the manifest that a group has not acked, when it was read or written last.",
    ["buffer", "group"],
)
buffer_acks = Counter("penstock_buffer_acks_total", "Entries of the manifest that were acked.", ["buffer"])
buffer_descriptors_handed_out = Counter(
    "penstock_buffer_descriptors_handed_out_total", "Descriptors that next_descriptors handed out.", ["buffer"]
)
buffer_gc_files_deleted = Counter(
    "penstock_buffer_gc_files_deleted_total", "Data objects that the collector deleted.", ["buffer"]
)
buffer_gc_files_failed = Counter(
    "penstock_buffer_gc_files_failed_total", "Data objects that the collector could not delete.", ["buffer"]
)
buffer_gc_duration = Histogram(
    "penstock_buffer_gc_duration_seconds", "How long a cycle of the collector took.", ["buffer"], buckets=_SECONDS
)
buffer_enqueue_in_doubt = Counter(
    "penstock_buffer_enqueue_in_doubt_total",
    "Batches enqueued again because the manifest held no evidence of the try before.",
    ["buffer"],
)
buffer_manifest_writes = Counter(
    "penstock_buffer_manifest_writes_total",
    "Tries to write the manifest, by role: producer or consumer.",
    ["buffer", "role"],
)
buffer_manifest_conflicts = Counter(
    "penstock_buffer_manifest_conflicts_total", "Tries that lost a compare-and-set, by role.", ["buffer", "role"]
)

queue_pushes = Counter("penstock_queue_pushes_total", "Events pushed, and on disk.", ["queue"])
queue_acks = Counter("penstock_queue_acks_total", "Events acked, and deleted.", ["queue"])
queue_nacks = Counter("penstock_queue_nacks_total", "Events given back to be taken again.", ["queue"])
queue_corrupt_skipped = Counter(
    "penstock_queue_corrupt_skipped_total",
    "Corrupt keys and events that a pop, a poll or an iterate went past.",
    ["queue"],
)
queue_ready = Gauge("penstock_queue_ready", "Events on disk that are not in flight.", ["queue"])
queue_in_flight = Gauge(
    "penstock_queue_in_flight", "Events that were taken, and neither acked nor given back.", ["queue"]
)
queue_oldest_age = Gauge(
    "penstock_queue_oldest_age_seconds",
    "How long ago the oldest event on disk was pushed, to a second; 0 if there is none.",
    ["queue"],
)

metalog_publishes = Counter("penstock_metalog_publishes_total", "Records that this process published.", ["log"])
metalog_objects = Counter(
    "penstock_metalog_objects_total", "Objects of an object log that this process wrote, with those records.", ["log"]
)
metalog_lost_races = Counter(
    "penstock_metalog_lost_races_total", "Objects that another process had written under the name first.", ["log"]
)

catalog_events_applied = Counter(
    "penstock_catalog_events_applied_total", "Events of the metadata log that catalogs applied."
)
catalog_events_skipped = Counter(
    "penstock_catalog_events_skipped_total",
    "Events that catalogs went past, by reason: corrupt, misplaced, refused or failed.",
    ["reason"],
)
catalog_pump_failures = Counter(
    "penstock_catalog_pump_failures_total", "How often reading the metadata log failed, and was tried again."
)
catalog_snapshots_written = Counter("penstock_catalog_snapshots_written_total", "Snapshots that catalogs wrote.")
catalog_snapshots_failed = Counter("penstock_catalog_snapshots_failed_total", "Snapshots that could not be written.")
catalog_snapshots_set_aside = Counter("penstock_catalog_snapshots_set_aside_total", "Snapshots that could not be used.")

inbound_paused = Gauge("penstock_inbound_paused", "How many engines hold their receiver at the moment.")
inbound_pauses = Counter("penstock_inbound_pauses_total", "How often an engine began to hold its receiver.")
byte_budget = Gauge("penstock_byte_budget", "How many bytes the next block may have; of the engine that asked last.")
recv_block_bytes = Gauge("penstock_recv_block_bytes", "How many bytes of payload the block received last has.")
pressure_ratio = Gauge("penstock_pressure_ratio", "The pressure, from 0 to 1, that was read last.")
engine_received = Counter(
    "penstock_engine_received_total", "Records that came from receivers, with those filtered or dead-lettered there."
)
engine_processed = Counter("penstock_engine_processed_total", "Records that were processed, and are with the sink.")
engine_errors = Counter(
    "penstock_engine_errors_total", "Records dropped because they could not be parsed, and blocks that failed."
)
engine_filtered = Counter("penstock_engine_filtered_total", "Records that a receiver's filters dropped.")
engine_dead_lettered = Counter("penstock_engine_dead_lettered_total", "Dead letters that were routed or discarded.")
engine_bytes = Counter("penstock_engine_bytes_total", "Bytes of payload that came from receivers.")

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
