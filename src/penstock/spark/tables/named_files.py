"""Files on this host's disk whose errors say which file it was: what a full disk answers a write with does not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_BUFFER_BYTES = 1 << 20


class NamedFile(io.BufferedWriter):
    """A file that is written, by its path."""

    def __init__(self, path: str, mode: str) -> None:
        """`mode` as for `io.FileIO`."""
        self.path = path
        super().__init__(io.FileIO(path, mode), _BUFFER_BYTES)

    def write(self, data: Any, /) -> int:
        """Write data, now or with the next flush."""
        with self._named():
            return super().write(data)

    def flush(self) -> None:
        """Write what waits."""
        with self._named():
            super().flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror, self.path) from error
