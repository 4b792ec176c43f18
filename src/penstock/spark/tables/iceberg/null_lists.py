"""Null lists and maps of structs stay null: pyiceberg's projection, with which it reads and writes, makes them empty.

Its class is replaced in this process, for its own reads too: compaction and upserts write again what they have read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import pyarrow as theirs

# It takes arrays of every type, which its own does not say.
_if_else: Callable[..., Any] = pc.if_else


class ProjectionWithNulls(theirs.ArrowProjectionVisitor):
    """As pyiceberg's, but for the nulls of lists and maps whose elements are structs."""

    def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
        """The list with its elements projected."""
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
        """The map with its keys and values projected."""
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def keep_null_lists() -> None:
    """Have pyiceberg use it."""
    theirs.ArrowProjectionVisitor = ProjectionWithNulls  # type: ignore[misc]


def _with_nulls_of(before: Any, projected: Any) -> Any:
    if projected is None or projected.null_count == before.null_count:
        return projected
    return _if_else(before.is_valid(), projected, pa.scalar(None, projected.type))
