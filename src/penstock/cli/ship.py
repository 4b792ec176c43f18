"""`penstock ship`: move the events of durable queues into a buffer."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.buffer import ProducerConfig
from penstock.cli.output import counted, say
from penstock.cli.places import BatchFormatOption
from penstock.core import StopOnSignal
from penstock.engine import ship


def ship_command(
    queue: Annotated[str, typer.Argument(help="A durable queue that no process has open, or a folder of such queues.")],
    where: Annotated[str, typer.Argument(help="The buffer: a path or a URL.")],
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when the queues are empty.")] = False,
    batch_format: BatchFormatOption = None,
) -> None:
    """Ship events from queues on this host into a buffer, until Ctrl-C or SIGTERM."""
    with StopOnSignal() as stop:
        config = ProducerConfig(format=batch_format)
        stats = ship(queue, where, stop=stop, until_idle=until_idle, config=config)
    say(f"shipped {counted(stats.processed, 'event')}, {counted(stats.bytes, 'byte')}")
