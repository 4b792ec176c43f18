"""Servers and programs for the tests of recipes; the buffer of each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.support.web_servers import RECIPES, Run, Serve, Server, programs


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


@pytest.fixture
def run(tmp_path: Path, buffer: Path) -> Iterator[Run]:
    """Run a Python module as a program, with the buffer of the test in its environment."""
    with programs(tmp_path) as start:
        yield lambda *words, **more: start(*words, **{"BUFFER": str(buffer), **more})


@pytest.fixture
def serve(run: Run) -> Serve:
    """Run a server, and return when it answers."""

    def serve(*words: str, at: Path = RECIPES, **environment: str) -> Server:
        server = cast("Server", run(*words, kind=Server, at=at, **environment))
        server.wait_until_it_answers()
        return server

    return serve
