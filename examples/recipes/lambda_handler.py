"""A function that is called again and again in one process, which is frozen between the calls."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from penstock import Producer, ProducerConfig

BUFFER = os.environ.get("BUFFER", "data/events")
SECONDS = 10.0  # less than the timeout of the function


@cache
def producer() -> Producer:
    """Open it in the first call, and keep it for the next ones."""
    return Producer(BUFFER, ProducerConfig(flush_interval=0.0, enqueue_deadline=SECONDS))


def handler(event: dict[str, Any], context: object) -> dict[str, int]:
    handle = producer().produce_json(event["records"])
    written = handle.result(SECONDS)  # after the return no thread of this process is sure to run
    return {"sequence": written.sequence}
