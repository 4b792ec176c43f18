"""Every command in one table: its line in `penstock --help`, and the module that is imported when it runs.

`penstock --help` and a mistyped command answer from this table. Arrow, RocksDB and Spark are loaded by the commands
that use them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is imported when it runs. `help` is the first paragraph of its own help."""

    module: str
    attribute: str
    help: str

    def load(self) -> Callable[..., None] | typer.Typer:
        """Import it: a function, or a `Typer` with commands of its own."""
        loaded: Callable[..., None] | typer.Typer = getattr(import_module(self.module), self.attribute)
        return loaded


COMMANDS = {
    "ship": Command(
        "penstock.cli.ship",
        "ship_command",
        "Ship events from queues on this host into a buffer, until Ctrl-C or SIGTERM.",
    ),
    "produce": Command(
        "penstock.cli.produce",
        "produce_command",
        "Put each line of the input into a buffer as an event, without its newline.",
    ),
    "consume": Command(
        "penstock.cli.consume",
        "consume_command",
        "Print the events of a buffer, one a line, and ack them.",
    ),
    "status": Command(
        "penstock.cli.status",
        "status_command",
        "Show what waits in a buffer. Only reads: takes no epoch, and fences no consumer.",
    ),
    "run": Command(
        "penstock.cli.run",
        "run_command",
        "Run a pipeline on Spark, until it has done what its trigger says, or until Ctrl-C or SIGTERM.",
    ),
    "gc": Command(
        "penstock.cli.gc",
        "gc_command",
        "Delete data that every group has acked, or that was never enqueued.",
    ),
    "demo": Command(
        "penstock.cli.demo",
        "demo_command",
        "Run everything on this machine: services, queues, a buffer, Spark, tables. The driver is killed on the way.",
    ),
    "manifest": Command(
        "penstock.cli.manifest",
        "manifest_app",
        "Look at the manifest of a buffer, or upgrade it.",
    ),
    "groups": Command(
        "penstock.cli.groups",
        "groups_app",
        "The groups that read a buffer, each at its own pace.",
    ),
    "writers": Command(
        "penstock.cli.writers",
        "writers_app",
        "The writers that a buffer remembers.",
    ),
    "queue": Command(
        "penstock.cli.queue",
        "queue_app",
        "Look at a durable queue, or repair it.",
    ),
    "metalog": Command(
        "penstock.cli.metalog",
        "metalog_app",
        "Look at a metadata log on an object store.",
    ),
}


class LazyGroup(TyperGroup):
    """The commands of the table. Help and completion use their lines; only the command that runs is imported."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = _built({name: _stand_in(command) for name, command in COMMANDS.items()})
        super().__init__(**settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that was typed, and import it. Fails with a usage error where there is none."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        return name, _built({name: COMMANDS[name].load()})[name], rest


def _stand_in(command: Command) -> typer.Typer:
    """A group that has only the command's line in the help."""
    group = typer.Typer(help=command.help)
    group.callback()(_do_nothing)
    return group


def _built(commands: dict[str, Callable[..., None] | typer.Typer]) -> dict[str, Any]:
    """The commands as typer builds them."""
    group = typer.Typer()
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            group.add_typer(command, name=name)
        else:
            group.command(name)(command)
    return dict(typer.main.get_group(group).commands)


def _do_nothing() -> None:
    """For typer, which needs a function."""
