"""Celery with the prefork pool: each process of the pool has a producer of its own."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

from penstock import Producer, ProducerConfig
from penstock.errors import BackpressureTimeout, StorageError

BUFFER = os.environ.get("BUFFER", "data/events")
CONFIG = ProducerConfig(flush_interval=0.02, enqueue_deadline=20.0)

app = Celery("tasks", broker=os.environ.get("BROKER", "amqp://"))
app.conf.task_acks_late = True  # a task that dies with its process is run again
app.conf.task_reject_on_worker_lost = True

producer: Producer


@worker_process_init.connect  # type: ignore[untyped-decorator]
def open_producer(**_: Any) -> None:
    global producer
    producer = Producer(BUFFER, CONFIG)


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def close_producer(**_: Any) -> None:
    producer.close()


@app.task(autoretry_for=(BackpressureTimeout, StorageError), retry_backoff=True)  # type: ignore[untyped-decorator]
def record(event: dict[str, Any]) -> int:
    return producer.produce_json(event, timeout=5.0).result().sequence  # durable when the task is done
