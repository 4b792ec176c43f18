"""The metrics of one buffer, bound to its label."""

from __future__ import annotations

import contextlib

from prometheus_client import Gauge

from penstock import metrics
from penstock.buffer.locations import MANIFEST_PATH
from penstock.storage import ObjectStore, url_of


def label_of(store: ObjectStore, manifest_path: str) -> str:
    """A buffer's URL without credentials; with the manifest's path where that is not the usual one."""
    return url_of(store) if manifest_path == MANIFEST_PATH else f"{url_of(store)}/{manifest_path}"


class Measures:
    """Every metric of a buffer, ready to be counted."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.batches_flushed = metrics.buffer_batches_flushed.labels(label)
        self.entries_flushed = metrics.buffer_entries_flushed.labels(label)
        self.bytes_flushed = metrics.buffer_bytes_flushed.labels(label)
        self.bytes_written = metrics.buffer_bytes_written.labels(label)
        self.flush_duration = metrics.buffer_flush_duration.labels(label)
        self.batches_collected = metrics.buffer_batches_collected.labels(label)
        self.entries_collected = metrics.buffer_entries_collected.labels(label)
        self.bytes_collected = metrics.buffer_bytes_collected.labels(label)
        self.fetch_duration = metrics.buffer_fetch_duration.labels(label)
        self.consumer_lag = metrics.buffer_consumer_lag.labels(label)
        self.queue_length = metrics.buffer_queue_length.labels(label)
        self.acks = metrics.buffer_acks.labels(label)
        self.descriptors_handed_out = metrics.buffer_descriptors_handed_out.labels(label)
        self.gc_files_deleted = metrics.buffer_gc_files_deleted.labels(label)
        self.gc_files_failed = metrics.buffer_gc_files_failed.labels(label)
        self.gc_duration = metrics.buffer_gc_duration.labels(label)
        self.enqueue_in_doubt = metrics.buffer_enqueue_in_doubt.labels(label)

    def group_lag(self, group: str) -> Gauge:
        """How many batches a group has not acked."""
        return metrics.buffer_group_lag.labels(self._label, group)

    def forget_group(self, group: str) -> None:
        """Remove the lag of a group that was dropped."""
        with contextlib.suppress(KeyError):
            metrics.buffer_group_lag.remove(self._label, group)
