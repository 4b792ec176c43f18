"""FastAPI: POST /events is answered with 200 when the event is on this host's disk. Any number of uvicorn's workers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from penstock import DurableEventQueue
from penstock.engine import Shipper
from penstock.errors import StorageError

QUEUES = os.environ.get("QUEUES", "data/queues")
BUFFER = os.environ.get("BUFFER", "data/events")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Each worker process has a queue of its own, and ships it.
    async with await DurableEventQueue.for_worker_async(QUEUES) as queue, Shipper(queue, BUFFER):
        app.state.queue = queue
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events")
async def receive(request: Request) -> dict[str, int]:
    queue: DurableEventQueue[bytes] = request.app.state.queue
    try:
        pushed = await queue.push_async(await request.body())  # synced: it survives a kill, and an outage of the store
    except StorageError as error:
        raise HTTPException(503, str(error)) from error  # the disk is full
    return {"id": pushed.id}
