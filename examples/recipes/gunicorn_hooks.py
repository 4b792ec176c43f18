"""gunicorn -c gunicorn_hooks.py flask_queue:app: each worker has a queue of its own, and ships it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from penstock import DurableEventQueue
from penstock.engine import Shipper

QUEUES = os.environ.get("QUEUES", "data/queues")
BUFFER = os.environ.get("BUFFER", "data/events")

opened = ExitStack()


def post_worker_init(worker: Any) -> None:
    """Open the queue in the new worker, which gunicorn has forked before."""
    queue = opened.enter_context(DurableEventQueue.for_worker(QUEUES))
    opened.enter_context(Shipper(queue, BUFFER))
    worker.wsgi.config["QUEUE"] = queue


def worker_exit(server: Any, worker: Any) -> None:
    """Ship the rest, for 5 seconds at most. What is left is shipped by the next worker, or by `penstock ship`."""
    opened.close()
