"""Arguments and options that commands share: a buffer, its manifest, and where in it a group begins."""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import typer

from penstock.buffer import BatchFormat, ConsumerConfig
from penstock.errors import InvalidInput, NotFound
from penstock.storage import ObjectStore, open_store

_MAX_SEQUENCE_DIGITS = 20

DEFAULTS = ConsumerConfig(manifest_format="native")  # what the environment asks for is read when a command runs
MANIFEST_PATH = DEFAULTS.manifest_path

Where: TypeAlias = Annotated[str, typer.Argument(help="The buffer: a path or a URL.")]
ManifestPath: TypeAlias = Annotated[str, typer.Option("--path", help="The manifest's path inside the buffer.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StorageOptions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option", "-o", metavar="NAME=VALUE", help="A setting of the store, such as region=eu-west-1."
    ),
]

BatchFormatOption: TypeAlias = Annotated[
    BatchFormat | None,
    typer.Option(
        "--batch-format",
        help="How data objects are written: arrow, or opendata, which OpenData's consumers can read and which keeps "
        "values only. Without it: opendata where the manifest is version 1, and arrow elsewhere.",
    ),
]


def open_with(where: str | os.PathLike[str], options: list[str] | None) -> ObjectStore:
    """Open a store with options as they were typed. No message has a value: it may be a credential."""
    return open_store(where, **named_values(options, "a storage option is NAME=VALUE, such as region=eu-west-1"))


def named_values(options: list[str] | None, form: str) -> dict[str, str]:
    """Options as they were typed, by their names. One without a name is a usage error, which says the form."""
    named = [option.partition("=") for option in options or ()]
    if any(not name or not separator for name, separator, _ in named):
        raise typer.BadParameter(form)
    return {name: value for name, _, value in named}


def has_manifest(store: ObjectStore, path: str) -> bool:
    """Whether there is a manifest. Most classes would make one, also in a directory that was typed by mistake."""
    try:
        store.head(path)
    except NotFound:
        return False
    return True


def beginning(word: str) -> str | int:
    """Where a group begins, as it was typed: a word, or a sequence. Raises `InvalidInput` for too large a number.

    >>> beginning("latest"), beginning("7")
    ('latest', 7)
    """
    if not word.isdecimal():
        return word
    if len(word) > _MAX_SEQUENCE_DIGITS:
        raise InvalidInput(f"start must be 'earliest', 'latest' or a sequence, not a number of {len(word)} digits")
    return int(word)
