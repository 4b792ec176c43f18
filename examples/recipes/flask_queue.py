"""Flask: POST /events is answered with 200 when the event is on this host's disk. gunicorn_hooks.py opens the queue."""

from __future__ import annotations

from flask import Flask, request

from penstock import DurableEventQueue
from penstock.errors import StorageError

app = Flask(__name__)


@app.post("/events")
def receive() -> tuple[dict[str, object], int]:
    queue: DurableEventQueue[bytes] = app.config["QUEUE"]
    try:
        pushed = queue.push(request.get_data())  # synced: it survives a kill, and an outage of the store
    except StorageError as error:
        return {"error": str(error)}, 503  # the disk is full
    return {"id": pushed.id}, 200
