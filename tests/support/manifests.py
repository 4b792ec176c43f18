"""Which manifest a buffer gets in a test, where the test does not say: the suites of the buffer run over both versions.

It reaches every process of a test: those it forks are told (`tests.support.processes`), those it starts read the
environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from penstock.buffer import ManifestFormat
from penstock.buffer.manifest.queue import BufferQueue
from penstock.storage import ObjectStore

VARIABLE = "PENSTOCK_TESTS_MANIFEST"
KINDS = [kind.value for kind in ManifestFormat]

_make = BufferQueue.__init__


def current() -> str:
    """What new buffers get at the moment."""
    return os.environ.get(VARIABLE, ManifestFormat.NATIVE)


def _make_current(
    queue: BufferQueue,
    store: ObjectStore,
    path: str,
    role: str,
    manifest_format: str = ManifestFormat.NATIVE,
    **more: object,
) -> None:
    wanted = current() if manifest_format == ManifestFormat.NATIVE else manifest_format
    _make(queue, store, path, role, wanted, **more)  # type: ignore[arg-type]


def follow_the_environment() -> None:
    """For a process that a test has started: it makes what the test makes."""
    if current() != ManifestFormat.NATIVE:
        BufferQueue.__init__ = _make_current  # type: ignore[assignment, method-assign]


@contextmanager
def new_buffers_are(kind: str) -> Iterator[None]:
    """Within this, a buffer that is not there yet gets this manifest."""
    with patch.dict(os.environ, {VARIABLE: kind}), patch.object(BufferQueue, "__init__", _make_current):
        yield
