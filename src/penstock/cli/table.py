"""`penstock table`: look at a table that pipelines write, and keep it small."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.buffer import BufferQueue
from penstock.cli.output import counted, say, say_json
from penstock.cli.places import (
    MANIFEST_PATH,
    AsJson,
    ManifestPath,
    StorageOptions,
    has_manifest,
    open_with,
)
from penstock.cli.table_places import CatalogOptions, TableKind, TablePlace, open_table_at, seconds_of, size_of
from penstock.errors import InvalidInput
from penstock.storage import url_of

if TYPE_CHECKING:
    from penstock.spark import TableInfo

table_app = typer.Typer(
    help="Look at a table that pipelines write, compact it, or remove what it does not need any more.",
    no_args_is_help=True,
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Remove nothing; show what would go.")]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a table is behind a group's buffer. `batches` is None where the table has nothing of the group."""

    group: str
    position: int | None
    next_sequence: int
    batches: int | None


@table_app.command("show")
def show_table(
    where: TablePlace,
    source: Annotated[
        str | None, typer.Option("--source", metavar="BUFFER", help="Show how far the table is behind this buffer.")
    ] = None,
    path: ManifestPath = MANIFEST_PATH,
    source_options: Annotated[
        list[str] | None,
        typer.Option("--source-option", metavar="NAME=VALUE", help="A setting of the buffer's store."),
    ] = None,
    kind: TableKind = None,
    catalog: CatalogOptions = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Show what is in a table: rows, files, sizes, how far each pipeline is. Writes nothing."""
    opened = open_table_at(where, kind, catalog, storage_options)
    info = opened.table.info()
    lags = None if source is None else _lags(source, path, source_options, info)
    if as_json:
        say_json(_as_json(info, lags))
        return
    for name, value in [*_rows(info), *_lag_rows(lags or [])]:
        say(f"{name:<13} {value}")


@table_app.command("compact")
def compact_table(
    where: TablePlace,
    target: Annotated[str, typer.Option(help="About how large files become, such as 64m or 1g.")] = "128m",
    kind: TableKind = None,
    catalog: CatalogOptions = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Write small files together. Pipelines and readers go on; positions stay, and so does each row, once.

    What was replaced stays until the vacuum. A table of Parquet files on a disk needs a file system that can exchange
    two directories in one step, and a query that has listed its files before has to run again.
    """
    from penstock.spark import size_in_bytes

    target_bytes = size_in_bytes("--target", target)
    done = open_table_at(where, kind, catalog, storage_options).table.compact(target_bytes)
    if as_json:
        say_json(asdict(done))
    elif not done.files_before:
        say("nothing to compact: no partition has two small files")
    else:
        before = f"{counted(done.files_before, 'file')} ({size_of(done.bytes_before)})"
        say(f"{before} became {counted(done.files_after, 'file')} ({size_of(done.bytes_after)})")


@table_app.command("vacuum")
def vacuum_table(
    where: TablePlace,
    older_than: Annotated[
        str, typer.Option(help="Keep what a reader may need who began this long ago, such as '7 days'.")
    ] = "7 days",
    dry_run: DryRun = False,
    kind: TableKind = None,
    catalog: CatalogOptions = None,
    as_json: AsJson = False,
    storage_options: StorageOptions = None,
) -> None:
    """Remove files that were replaced, and files of attempts that were never committed."""
    seconds = seconds_of("--older-than", older_than)
    done = open_table_at(where, kind, catalog, storage_options).table.vacuum(seconds, dry_run=dry_run)
    if as_json:
        say_json({**asdict(done), "dry_run": dry_run})
    else:
        say(f"{'would remove' if dry_run else 'removed'} {counted(done.files, 'file')}, {size_of(done.bytes)}")


def _lags(source: str, path: str, options: list[str] | None, info: TableInfo) -> list[Lag]:
    from penstock.spark import query_of

    store = open_with(source, options)
    if not has_manifest(store, path):
        raise InvalidInput(f"there is no buffer at {url_of(store)}: no manifest {path!r}")
    view = BufferQueue(store, path, "consumer").look()
    lags = []
    for group in view.groups:
        position = info.positions.get(query_of(str(view.buffer_id), group))
        end = None if position is None else position.end
        lags.append(Lag(group, end, view.next_sequence, None if end is None else max(view.next_sequence - end, 0)))
    return lags


def _as_json(info: TableInfo, lags: list[Lag] | None) -> dict[str, Any]:
    shown = asdict(info)
    shown["columns"] = [{"name": name, "type": kind} for name, kind in info.columns]
    for position in shown["positions"].values():
        if position["restored"] is None:  # as it is, but for tables that were set back
            del position["restored"]
    shown["last_commit_at"] = None if info.last_commit_at is None else info.last_commit_at.isoformat()
    return shown | ({} if lags is None else {"lag": [asdict(lag) for lag in lags]})


def _rows(info: TableInfo) -> list[tuple[str, object]]:
    average = f", {size_of(info.bytes // info.files)} each on average" if info.files else ""
    rows: list[tuple[str, object]] = [
        ("table", info.url),
        ("kind", info.kind),
        ("rows", "not known" if info.rows is None else info.rows),
        ("files", f"{info.files}{average}"),
        ("size", size_of(info.bytes)),
        ("columns", ", ".join(f"{name} {kind}" for name, kind in info.columns)),
        ("partitioned by", ", ".join(info.partition_by) or "nothing"),
        ("last commit", "not known" if info.last_commit_at is None else f"{info.last_commit_at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    for query, position in info.positions.items():
        began = "" if position.first is None else f", last block from {position.first}"
        count = "" if position.rows is None else f" with {counted(position.rows, 'row')}"
        rows.append((f"query {query}", f"up to sequence {position.end - 1}{began}{count}"))
    return rows


def _lag_rows(lags: list[Lag]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for lag in lags:
        behind = "nothing of it is in this table"
        if lag.batches is not None:
            behind = f"{counted(lag.batches, 'batch', 'batches')} behind"
        rows.append((f"group {lag.group}", f"{behind}; the buffer's next sequence is {lag.next_sequence}"))
    return rows
