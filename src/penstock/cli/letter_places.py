"""Arguments and options of commands that work on dead letters, in whatever they are stored."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.cli.places import MANIFEST_PATH, named_values
from penstock.cli.table_places import NO_PYSPARK, open_table_at
from penstock.engine import LETTER_KINDS, open_letters
from penstock.errors import InvalidInput
from penstock.storage import redact

if TYPE_CHECKING:
    from penstock.engine import LetterPlace

_TABLE_KINDS = ("parquet", "delta", "iceberg")

LetterArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="LETTERS",
        help="Where the letters are: a directory of files, a queue, a buffer or a table, by its path or URL; or the "
        "name of an Iceberg table.",
    ),
]
LetterKindOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--kind", help="files, queue, buffer, parquet, delta or iceberg. Without it: found by looking."),
]
LettersPath: TypeAlias = Annotated[
    str, typer.Option("--letters-path", help="The manifest's path inside the buffer, where the letters are in one.")
]
LETTERS_PATH = MANIFEST_PATH


def open_letters_at(
    where: str, kind: str | None, catalog: list[str] | None, storage_options: list[str] | None, manifest_path: str
) -> LetterPlace:
    """Open letters that are there, as their place was typed."""
    if kind is not None and kind not in (*LETTER_KINDS, *_TABLE_KINDS):
        raise InvalidInput(f"--kind must be one of {', '.join((*LETTER_KINDS, *_TABLE_KINDS))}, not {kind!r}")
    if kind in LETTER_KINDS and catalog:
        raise InvalidInput(f"--catalog goes with the name of an Iceberg table, not with --kind {kind}")
    if kind in LETTER_KINDS or (kind is None and not catalog):
        options = named_values(storage_options, "a storage option is NAME=VALUE, such as region=eu-west-1")
        found = open_letters(where, kind=kind, options=options, manifest_path=manifest_path)
        if found is not None:
            return found
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidInput(
            f"there are no dead letters at {redact(where)}: no files, queue or buffer of them. If it is a table: "
            f"{NO_PYSPARK}"
        )
    return open_table_at(where, kind, catalog, storage_options)
