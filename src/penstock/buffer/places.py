"""The paths of the objects of a buffer, checked before the first of them is written.

A manifest gets its first segment only after hundreds of batches: a path that cannot hold one is refused at the start.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.buffer.collector.turns import MARK
from penstock.buffer.locations import folder_of, is_data_name, segment_time
from penstock.buffer.manifest.ownership import OWNER
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore, check_path_in, is_below, is_path, url_of

_ULID = "0" * 26
_SEGMENT = f"{'0' * 20}-{_ULID}.seg"
_BATCH = f"{_ULID}.batch"
_MAX_PATH_BYTES = 1024  # what `check_path` accepts


def check_apart(prefix: str, manifest: str) -> None:
    """Raise `InvalidInput` where data, manifest and segments would collide, or have too long a path."""
    folder, _, name = manifest.rpartition("/")
    segments = folder_of(manifest)
    if folder == prefix and (name in {OWNER, MARK} or is_data_name(name)):
        raise InvalidInput(f"manifest_path {manifest!r} is a name that data_path_prefix {prefix!r} needs itself")
    if name == MARK or is_data_name(name) or segment_time(name) is not None:
        # In any folder: it may belong to another buffer, whose collector deletes or replaces objects of such names.
        raise InvalidInput(
            f"manifest_path {manifest!r} has the name of a data object, a segment or a collector's mark: the collector "
            "of another buffer could take it for its own; use another name, such as 'ingest/manifest'"
        )
    if is_below(manifest, f"{prefix}/{OWNER}"):
        raise InvalidInput(f"manifest_path {manifest!r} is below {OWNER!r}, which data_path_prefix {prefix!r} needs")
    if prefix == manifest or is_below(prefix, manifest):
        raise InvalidInput(
            f"data_path_prefix {prefix!r} is manifest_path {manifest!r} or below it: on a local disk one name cannot "
            "be an object and also hold objects"
        )
    if prefix == segments or is_below(prefix, segments):
        raise InvalidInput(
            f"data_path_prefix {prefix!r} is in {segments!r}, where the segments of manifest_path {manifest!r} are"
        )
    for field, value, path in _paths(prefix, manifest):
        if not is_path(path):
            raise InvalidInput(
                f"{field} {value!r} is too long: with the name of an object it has {len(path.encode())} bytes, and a "
                f"path has at most {_MAX_PATH_BYTES}"
            )


def check_places(store: ObjectStore, prefix: str | None, manifest: str) -> None:
    """Raise `InvalidInput`, naming the field, where a store cannot keep an object of this buffer at its path."""
    for field, value, path in _paths(prefix, manifest):
        try:
            check_path_in(store, path)
        except InvalidInput as error:
            raise InvalidInput(f"{field} {value!r} cannot be used in {url_of(store)}: {error}") from error


def _paths(prefix: str | None, manifest: str) -> Iterator[tuple[str, str, str]]:
    for path in (manifest, f"{folder_of(manifest)}/{_SEGMENT}"):
        yield "manifest_path", manifest, path
    if prefix is not None:
        for name in (_BATCH, OWNER):
            yield "data_path_prefix", prefix, f"{prefix}/{name}"
