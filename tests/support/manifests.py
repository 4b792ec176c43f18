"""The version of the manifest that new buffers get: the suites of the buffer run over both.

It is set as an operator sets it, by the environment, which reaches every process of a test: those that it starts
inherit it, and `tests.support.processes` hands it to those that a server forks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from penstock.buffer import ManifestFormat

VARIABLE = "PENSTOCK_MANIFEST_FORMAT"
KINDS = [kind.value for kind in ManifestFormat]
NATIVE_FIRST = ["native", pytest.param("opendata", marks=pytest.mark.slow)]
"""For files that take long and show on both versions what the code that both share does."""


def current() -> str:
    """The format that new buffers get at the moment."""
    return os.environ.get(VARIABLE, ManifestFormat.NATIVE)


@contextmanager
def new_buffers_are(kind: str) -> Iterator[None]:
    """Within this, a buffer that is not there yet gets this manifest."""
    with patch.dict(os.environ, {VARIABLE: kind}):
        yield
