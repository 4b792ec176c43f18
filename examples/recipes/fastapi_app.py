"""FastAPI: POST /events is answered with 200 when the event is durable."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from penstock import Producer, ProducerConfig
from penstock.errors import BackpressureTimeout, StorageError

BUFFER = os.environ.get("BUFFER", "data/events")
CONFIG = ProducerConfig(flush_interval=0.02, enqueue_deadline=20.0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # In the lifespan, not at the top of the module: each worker process opens a producer of its own.
    async with await Producer.open_async(BUFFER, CONFIG) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/events")
async def receive(request: Request) -> dict[str, int]:
    producer: Producer = request.app.state.producer
    try:
        handle = await producer.produce_async(await request.body(), timeout=5.0)
        written = await handle  # durable, and in the queue
    except (BackpressureTimeout, StorageError) as error:
        raise HTTPException(503, str(error)) from error  # the client tries again
    return {"sequence": written.sequence}
