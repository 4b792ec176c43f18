"""`penstock queue`: look at what a durable queue holds, while no process has it open."""

from __future__ import annotations

import base64
import json
from itertools import islice
from typing import Annotated

import typer

from penstock.errors import NotFound
from penstock.queue import DurableEventQueue, is_queue

queue_app = typer.Typer(help="Look at a durable queue.", no_args_is_help=True)


@queue_app.callback()
def queue() -> None:
    """Look at a durable queue."""


@queue_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="The directory of a durable queue that no process has open.")],
    most: Annotated[int, typer.Option(min=0, help="How many events to show, the oldest first.")] = 10,
) -> None:
    """Print what a durable queue holds as JSON, without taking or acking anything."""
    if not is_queue(where):
        raise NotFound(f"there is no durable queue in {where}")
    with DurableEventQueue(where) as found:
        seen = {
            "not_acked": len(found),
            "oldest_age_seconds": found.oldest_age(),
            "corrupt_keys": [key.hex() for key in found.corrupt_keys()],
            "events": [
                {"id": one.id, "bytes": len(one.event), "base64": base64.b64encode(one.event).decode()}
                for one in islice(found.iterate(skip_corrupt=True), most)
            ],
        }
    typer.echo(json.dumps(seen, indent=2))
