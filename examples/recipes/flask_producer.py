"""Flask: POST /events is answered with 200 when the event is in the buffer."""

from __future__ import annotations

import os

from flask import Flask, request

from penstock import Producer, ProducerConfig
from penstock.errors import BackpressureTimeout, StorageError

BUFFER = os.environ.get("BUFFER", "data/events")

# Each worker process imports this module, and opens a producer of its own. Not so under `gunicorn --preload`, which
# imports it before it forks: open the producer in the hook post_worker_init then, as gunicorn_hooks.py does.
producer = Producer(BUFFER, ProducerConfig(flush_interval=0.02, enqueue_deadline=20.0))
app = Flask(__name__)


@app.post("/events")
def receive() -> tuple[dict[str, object], int]:
    try:
        written = producer.produce(request.get_data(), timeout=5.0).result()  # durable, and in the queue
    except (BackpressureTimeout, StorageError) as error:
        return {"error": str(error)}, 503  # the client tries again
    return {"sequence": written.sequence}, 200
