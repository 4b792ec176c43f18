"""`penstock ship`: move the events of durable queues into a buffer."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from penstock.buffer import ProducerConfig
from penstock.cli.output import counted, say
from penstock.cli.places import BatchFormatOption
from penstock.core import StopOnSignal
from penstock.engine import ship
from penstock.errors import NotFound
from penstock.queue import WorkerQueues, is_queue, queue_status


def ship_command(
    queue: Annotated[str, typer.Argument(help="A durable queue that no process has open, or a folder of queues.")],
    where: Annotated[str, typer.Argument(help="The buffer: a path or a URL.")],
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when the queues are empty.")] = False,
    batch_format: BatchFormatOption = None,
) -> None:
    """Ship events from queues on this host into a buffer, until Ctrl-C or SIGTERM.

    In a folder, queues of workers (DurableEventQueue.for_worker) are left to their workers while these live; after that
    they are shipped, and removed when they are empty.
    """
    with StopOnSignal() as stop:
        config = ProducerConfig(format=batch_format)
        stats = ship(queue, where, stop=stop, until_idle=until_idle, config=config)
    shipped = f"shipped {counted(stats.processed, 'event')}, {counted(stats.bytes, 'byte')}"
    live = 0 if is_queue(queue) else _live_workers(queue)
    say(f"{shipped}; {counted(live, 'queue')} left to live workers" if live else shipped)


def _live_workers(folder: str) -> int:
    workers, live = WorkerQueues(folder), 0
    with suppress(OSError):  # it is not there yet
        for place in workers.places():
            with suppress(NotFound):
                live += bool(queue_status(place).is_open)
    return live
