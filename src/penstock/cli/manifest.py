"""`penstock manifest`: print the manifest of a buffer, or upgrade it."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.buffer import BatchDescriptor, Manifest, folder_of, needs_upgrade, upgrade
from penstock.cli.output import counted, say, say_json
from penstock.cli.places import MANIFEST_PATH, ManifestPath, StorageOptions, Where, has_manifest, open_with
from penstock.errors import NotFound
from penstock.storage import ObjectStore, local_path, url_of

_NATIVE = ("revision", "groups", "forgotten_through", "floor", "floor_set_at")

manifest_app = typer.Typer(help="Look at the manifest of a buffer, or upgrade it.", no_args_is_help=True)


@manifest_app.command()
def dump(
    where: Annotated[str, typer.Argument(help="A buffer (directory or URL), or a manifest's own file or URL.")],
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Print a manifest as JSON. Only reads: takes no epoch, and fences no consumer."""
    found = _find(where, path, storage_options)
    if found is None:
        say(f"penstock: there is no manifest {path!r} in {where}: an empty queue", err=True)
        found = Manifest.empty()
    say_json(_as_json(found))


@manifest_app.command("upgrade")
def upgrade_command(
    where: Where,
    path: ManifestPath = MANIFEST_PATH,
    storage_options: StorageOptions = None,
) -> None:
    """Make a manifest of version 1 version 2, for good.

    Penstock's producers and consumers go on by themselves, if they are of this release or newer. Those of OpenData
    cannot read version 2: stop them first.
    """
    store = open_with(where, storage_options)
    if needs_upgrade(store, path):
        say("OpenData's producers and consumers cannot read version 2: they must be stopped by now.", err=True)
    done = upgrade(store, path)
    if done.is_new:
        say(f"upgraded {where} to version 2, with {counted(done.entries, 'batch', 'batches')} that wait in it")
    else:
        say(f"{where} is version 2 already")


def _find(where: str, path: str, options: list[str] | None) -> Manifest | None:
    if "://" not in where or where.startswith("file://"):
        return _find_on_disk(local_path(where), path, options)
    found = _read(open_with(where, options), path)
    parent, _, name = where.rstrip("/").rpartition("/")
    if found is not None or "://" not in parent.rstrip("/") or parent.endswith(":/"):
        return found
    return _read(open_with(parent, options), name)  # perhaps it is the manifest's own URL


def _find_on_disk(place: str, path: str, options: list[str] | None) -> Manifest | None:
    if os.path.isfile(place):
        own = Path(os.path.realpath(place))  # beside which its segments are
        return _read(open_with(own.parent, options), own.name)
    if not os.path.isdir(place):
        raise NotFound(f"there is no file or directory {place}")
    return _read(open_with(Path(place), options), path)


def _read(store: ObjectStore, path: str) -> Manifest | None:
    if not has_manifest(store, path):
        return None
    try:
        return Manifest.read(store, path)
    except NotFound as error:
        raise NotFound(
            f"the manifest {path!r} in {url_of(store)} needs its segments beside it, in {folder_of(path)!r}: {error}"
        ) from error


def _as_json(found: Manifest) -> dict[str, object]:
    shown: dict[str, object] = {
        "version": found.version,
        "id": None if found.id is None else str(found.id),
        "epoch": found.epoch,
        "next_sequence": found.next_sequence,
        "entries": [_entry_as_json(entry) for entry in found.entries],
    }
    if found.head is not None:
        known = msgspec.to_builtins({name: getattr(found.head, name) for name in _NATIVE})
        shown |= known | {"segments": [msgspec.structs.asdict(one) for one in found.head.segments]}
        shown["writers"] = {name: msgspec.structs.asdict(one) for name, one in found.head.writers.items()}
    return shown


def _entry_as_json(entry: BatchDescriptor) -> dict[str, object]:
    return {
        "sequence": entry.sequence,
        "location": entry.location,
        "size": entry.size,
        "records": entry.records,
        "metadata": [
            {
                "start_index": item.start_index,
                "ingestion_time_ms": item.ingestion_time_ms,
                "payload_base64": base64.b64encode(item.payload).decode(),
            }
            for item in entry.metadata
        ],
    }
