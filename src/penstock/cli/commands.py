"""Every command in one table: its line in `penstock --help`, and the module that is imported when it runs.

`penstock --help` and a mistyped command answer from this table. Arrow, RocksDB and Spark are loaded by the commands
that use them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "ship": "Ship events from queues on this host into a buffer, until Ctrl-C or SIGTERM.",
    "produce": "Put each line of the input into a buffer as an event, without its newline.",
    "import": "Move a topic of Kafka into a buffer, each record once, until Ctrl-C or SIGTERM.",
    "consume": "Print the events of a buffer, one a line, and ack them.",
    "status": "Show what waits in a buffer. Only reads: takes no epoch, and fences no consumer.",
    "run": "Run a pipeline on Spark, until it has done what its trigger says, or until Ctrl-C or SIGTERM.",
    "gc": "Delete data that every group has acked, or that was never enqueued.",
    "demo": "Run everything on this machine: services, queues, a buffer, Spark, tables. "
    "The driver is killed on the way.",
    "manifest": "Look at the manifest of a buffer, or upgrade it.",
    "groups": "The groups that read a buffer, each at its own pace.",
    "writers": "The writers that a buffer remembers.",
    "queue": "Look at a durable queue, or repair it.",
    "table": "Look at a table that pipelines write, compact it, or remove what it does not need any more.",
    "dlq": "Look at dead letters, and send them into a buffer again.",
    "metalog": "Look at a metadata log on an object store.",
}
"""The commands, each with the first paragraph of its own help."""


def load(name: str) -> Callable[..., None] | typer.Typer:
    """Import a command: `<name>_command` of its module, or a `Typer` with commands of its own, `<name>_app`."""
    file = f"{name}_" if iskeyword(name) else name
    module = import_module(f"penstock.cli.{file}")
    loaded: Callable[..., None] | typer.Typer = getattr(module, f"{name}_command", None) or getattr(
        module, f"{name}_app"
    )
    return loaded


class LazyGroup(TyperGroup):
    """The commands of the table. Help and completion use their lines; only the command that runs is imported."""

    def __init__(self, **settings: Any) -> None:
        settings["commands"] = _built({name: _stand_in(text) for name, text in COMMANDS.items()})
        super().__init__(**settings)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that was typed, and import it. Fails with a usage error where there is none."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, command, rest
        return name, _built({name: load(name)})[name], rest


def _stand_in(text: str) -> typer.Typer:
    """A group that has only the command's line in the help."""
    group = typer.Typer(help=text)
    group.callback()(lambda: None)  # typer needs a function
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
