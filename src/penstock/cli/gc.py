"""`penstock gc`: run a cycle of the collector now, or show what it would delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.buffer import ConsumerConfig, GarbageCollector, GcReport
from penstock.cli.output import counted, date, say, say_json
from penstock.cli.places import (
    DEFAULTS,
    MANIFEST_PATH,
    AsJson,
    ManifestPath,
    StorageOptions,
    Where,
    has_manifest,
    open_with,
)
from penstock.errors import InvalidInput
from penstock.storage import url_of


def gc_command(
    where: Where,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete and write nothing; show what would go.")] = False,
    path: ManifestPath = MANIFEST_PATH,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Where the data objects lie; needed with --path.")
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds that readers and producers have; at least 600.")
    ] = DEFAULTS.gc_grace_period,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Delete data that every group has acked, or that was never enqueued.

    With a manifest of version 2 it takes two runs: one sets a floor, and one a grace period later deletes what is below
    it. Exit status 1: something could not be deleted, or the buffer could not be read.
    """
    store = open_with(where, storage_options)
    if not has_manifest(store, path):
        raise InvalidInput(f"there is no manifest {path!r} in {url_of(store)}: nothing is collected without one")
    if prefix is None and path != MANIFEST_PATH:
        raise InvalidInput(
            f"where the data of the manifest {path!r} lies is not known here: give --prefix, as the buffer's producers "
            "have it in data_path_prefix"
        )
    config = ConsumerConfig(
        manifest_path=path, data_path_prefix=prefix or DEFAULTS.data_path_prefix, gc_grace_period=grace
    )
    report = GarbageCollector(store, config).collect_once(dry_run=dry_run)
    if as_json:
        say_json(asdict(report))
    else:
        for line in _lines(report, dry_run=dry_run):
            say(line)
    if report.failed:
        raise typer.Exit(1)


def _lines(report: GcReport, *, dry_run: bool) -> list[str]:
    details = report.details
    done = "would delete" if dry_run else "deleted"
    lines = [f"{done} {counted(report.deleted, 'object')} of {counted(details.deleted_bytes, 'byte')}"]
    if report.failed:
        lines.append(f"could not delete {report.failed}: the log has the reason; the next cycle tries again")
    lines.append(f"kept {report.kept}; the queue has {counted(details.named, 'entry', 'entries')}")
    if details.waiting:
        lines.append(f"  deleted after {date(details.waits_until)}, the end of their grace period: {details.waiting}")
    if details.later:
        what = "a cycle would begin" if dry_run else "this cycle began"
        when = "" if details.waiting else f", which {what}"
        lines.append(f"  in no queue, and deleted after a grace period{when}: {details.later}")
    if details.ahead:
        lines.append(f"  dated ahead, because the clock of a host is or was wrong: {details.ahead}")
    if details.floor:
        lines.append(f"floor: {date(details.floor)}")
    return lines
