"""`penstock import`: move a topic of Kafka into a buffer."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.output import counted, say, say_json
from penstock.cli.places import AsJson, StorageOptions, named_values, open_with
from penstock.core import StopOnSignal
from penstock.engine import KafkaImport, KafkaPlace
from penstock.storage import redact

_PROGRESS_SECONDS = 2.0


class Beginning(StrEnum):
    """Where an import begins that the buffer knows nothing of."""

    EARLIEST = "earliest"
    LATEST = "latest"


def import_command(
    source: Annotated[
        str, typer.Argument(help="The topic: kafka://HOST:PORT/TOPIC. A login may stand before the host.")
    ],
    to: Annotated[str, typer.Option("--to", help="The buffer: a path or a URL.")],
    group: Annotated[
        str, typer.Option(help="The name of this import. One of another name begins anew.")
    ] = "penstock-import",
    beginning: Annotated[
        Beginning, typer.Option("--from", help="Where to begin, the first time: earliest or latest.")
    ] = Beginning.EARLIEST,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End at the offsets where the topic ended at the start.")
    ] = False,
    kafka_options: Annotated[
        list[str] | None,
        typer.Option(
            "--kafka-option", metavar="NAME=VALUE", help="A setting of Kafka's client, such as security.protocol=SSL."
        ),
    ] = None,
    block_records: Annotated[
        int, typer.Option(min=1, help="How many records of a partition are written at once, at most.")
    ] = 100_000,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Move a topic of Kafka into a buffer, each record once, until Ctrl-C or SIGTERM.

    Keys, headers and timestamps are kept. Killed and started again it goes on: the buffer has the records and how far
    each partition is in one write. A second import of the same group into the same buffer is refused.
    """
    options = named_values(kafka_options, "a setting of Kafka's client is NAME=VALUE, such as security.protocol=SSL")
    # Without a log of the client's, which has lines for each attempt to connect: an error is one line, with the reason.
    place = KafkaPlace.of(source, {"log_level": "0"} | options)
    store = open_with(to, storage_options)
    with (
        StopOnSignal() as stop,
        KafkaImport(
            place, store, group=group, start=beginning, until_end=until_end, block_records=block_records
        ) as running,
    ):
        running.run(stop.is_set, _Progress(running))
        partitions = {
            str(number): {"from": part.begin, "to": part.appended} for number, part in running.partitions.items()
        }
    if stop.signal is not None:
        say(f"penstock: stopped by {stop.signal.name}; what was read is in the buffer", err=True)
    if as_json:
        say_json({"topic": place.topic, "events": running.events, "bytes": running.bytes, "partitions": partitions})
        return
    say(
        f"imported {counted(running.events, 'event')}, {counted(running.bytes, 'byte')}, of "
        f"{counted(len(partitions), 'partition')} of {redact(source)}"
    )


class _Progress:
    """A line every two seconds, at a terminal."""

    def __init__(self, running: KafkaImport) -> None:
        self._running = running
        self._is_terminal = sys.stderr.isatty()
        self._shown = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if not self._is_terminal or now - self._shown < _PROGRESS_SECONDS:
            return
        self._shown = now
        remaining = self._running.remaining
        rest = "" if remaining is None else f", {counted(remaining, 'offset')} to go"
        say(f"imported {counted(self._running.events, 'event')}{rest}", err=True)
