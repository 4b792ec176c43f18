"""`penstock queue`: look at durable queues; print what one holds, or repair it, while no process has it open."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.output import counted, say, say_json, show
from penstock.cli.places import AsJson
from penstock.core import printable
from penstock.errors import NotFound
from penstock.queue import (
    DurableEventQueue,
    QueueStatus,
    WorkerQueues,
    is_queue,
    queue_status,
    queues_in,
    repair_queue,
)

queue_app = typer.Typer(help="Look at a durable queue, or repair it.", no_args_is_help=True)

_COLUMNS = ("queue", "not acked", "on disk", "last write", "state")
_MAX_PATH_CHARACTERS = 1000


@queue_app.command()
def status(
    where: Annotated[str, typer.Argument(help="The directory of a durable queue, or a folder of such queues.")],
    as_json: AsJson = False,
) -> None:
    """Show what waits in queues, and which processes have them open. Opens none: takes no lock, and writes nothing."""
    found = list(_statuses(where))
    if not found and not WorkerQueues(where).exist:
        raise _no_queue(where)
    if as_json:
        say_json([asdict(one) for one in found])
        return
    if found:
        show(_COLUMNS, map(_row, found))
    waiting = sum(one.not_acked or 0 for one in found)
    say(f"{counted(len(found), 'queue')}, {sum(bool(one.is_open) for one in found)} open; {counted(waiting, 'event')}")


@queue_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="The directory of a durable queue that no process has open.")],
    most: Annotated[int, typer.Option(min=0, help="How many events to show, the oldest first.")] = 10,
) -> None:
    """Print what a durable queue holds as JSON, without taking or acking anything."""
    if not is_queue(where):
        raise _no_queue(where)
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


def _statuses(where: str) -> Iterator[QueueStatus]:
    places = [where]
    if not is_queue(where):
        try:
            places = queues_in(where)
        except OSError as error:
            raise _no_queue(where, f": {error.strerror}") from error
    for place in places:
        with suppress(NotFound):  # removed since
            yield queue_status(place)


def _row(one: QueueStatus) -> Sequence[str]:
    return (
        os.path.basename(one.path),
        "" if one.not_acked is None else f"{one.not_acked:,}",
        f"{one.bytes_on_disk:,} bytes",
        "" if one.seconds_since_write is None else f"{one.seconds_since_write:.0f} s ago",
        _state(one),
    )


def _state(one: QueueStatus) -> str:
    kind = "of a worker, " if one.of_worker else ""
    if one.damage is not None:
        return f"{kind}damaged: {one.damage}"
    if one.is_open is None:
        return f"{kind}this system does not say whether it is open"
    if not one.is_open:
        return f"{kind}not open"
    return f"{kind}open in process {one.process}" if one.process else f"{kind}open in a process that is not seen here"


def _no_queue(where: str, reason: str = "") -> NotFound:
    return NotFound(f"there is no durable queue in {printable(where, _MAX_PATH_CHARACTERS)}{reason}")
