"""`penstock manifest`: look at what lies in a queue."""

from __future__ import annotations

import base64
import json
import os
from typing import Annotated

import typer

from penstock.buffer import BatchDescriptor, Manifest
from penstock.buffer.manifest import MANIFEST_PATH
from penstock.errors import NotFound
from penstock.storage import ObjectStore, open_store

manifest_app = typer.Typer(help="Look at the manifest of a buffer.", no_args_is_help=True)


@manifest_app.callback()
def manifest() -> None:
    """Look at the manifest of a buffer."""


@manifest_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="A buffer (directory or URL), or a manifest's own file or URL.")],
    path: Annotated[str, typer.Option(help="The manifest's path inside the buffer.")] = MANIFEST_PATH,
) -> None:
    """Print a manifest as JSON. Takes no epoch, and so disturbs nobody."""
    found = _find(where, path)
    if found is None:
        typer.echo(f"penstock: there is no manifest {path!r} in {where}: an empty queue", err=True)
        found = Manifest(1, 0, 0, ())
    typer.echo(json.dumps(_as_json(found), indent=2, ensure_ascii=False))


def _find(where: str, path: str) -> Manifest | None:
    local = where.removeprefix("file://")
    if "://" not in local:
        if os.path.isfile(local):
            with open(local, "rb") as file:
                return Manifest.decode(file.read())
        if not os.path.isdir(local):
            raise NotFound(f"there is no file or directory {local}")
    found = _read(open_store(where), path)
    parent, _, name = where.rstrip("/").rpartition("/")
    if found is not None or "://" not in parent.rstrip("/") or parent.endswith(":/"):
        return found
    return _read(open_store(parent), name)  # perhaps it is the manifest's own URL


def _read(store: ObjectStore, path: str) -> Manifest | None:
    try:
        return Manifest.decode(store.get(path).data)
    except NotFound:
        return None


def _as_json(found: Manifest) -> dict[str, object]:
    return {
        "version": found.version,
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "entries": [_entry_as_json(entry) for entry in found.entries],
    }


def _entry_as_json(entry: BatchDescriptor) -> dict[str, object]:
    return {
        "sequence": entry.sequence,
        "location": entry.location,
        "metadata": [
            {
                "start_index": item.start_index,
                "ingestion_time_ms": item.ingestion_time_ms,
                "payload_base64": base64.b64encode(item.payload).decode(),
            }
            for item in entry.metadata
        ],
    }
