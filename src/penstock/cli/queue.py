"""`penstock queue`: print what a durable queue holds, or repair it, while no process has it open."""

from __future__ import annotations

import base64
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.output import say, say_json
from penstock.core import printable
from penstock.errors import NotFound
from penstock.queue import DurableEventQueue, is_queue, repair_queue

queue_app = typer.Typer(help="Look at a durable queue, or repair it.", no_args_is_help=True)

_MAX_PATH_CHARACTERS = 1000


@queue_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="The directory of a durable queue that no process has open.")],
    most: Annotated[int, typer.Option(min=0, help="How many events to show, the oldest first.")] = 10,
) -> None:
    """Print what a durable queue holds as JSON, without taking or acking anything."""
    if not is_queue(where):
        raise NotFound(f"there is no durable queue in {printable(where, _MAX_PATH_CHARACTERS)}")
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
    say_json(seen)


@queue_app.command()
def repair(
    where: Annotated[str, typer.Argument(help="The directory of a durable queue that no process has open.")],
) -> None:
    """Repair a damaged queue: keep every event that can be read, list what is lost, move damaged files aside."""
    done = repair_queue(where)
    say(done.summary())
    if done.damage:
        say(f"The damage: {done.damage}")
