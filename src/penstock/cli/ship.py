"""`penstock ship`: move the events of durable queues into a buffer."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from penstock.buffer import ProducerConfig
from penstock.cli.output import say
from penstock.cli.places import BatchFormatOption
from penstock.engine import ship


def ship_command(
    queue: Annotated[str, typer.Argument(help="A durable queue that no process has open, or a folder of such queues.")],
    where: Annotated[str, typer.Argument(help="The buffer: a path or a URL.")],
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing is left.")] = False,
    batch_format: BatchFormatOption = None,
) -> None:
    """Ship events from queues on this host into a buffer, until it is told to stop (Ctrl-C or SIGTERM)."""
    stop = threading.Event()
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        config = ProducerConfig(format=batch_format)
        stats = ship(queue, where, stop=stop, until_idle=until_idle, config=config)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    say(f"shipped {stats.processed} events, {stats.bytes} bytes")
