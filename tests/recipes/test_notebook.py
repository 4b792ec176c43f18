"""`examples/recipes/notebook.ipynb` in a real kernel, whose event loop runs: its cells await at the top level."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.processes import PATIENCE
from tests.support.web_servers import RECIPES


def test_every_cell_runs_and_shows_what_it_says(buffer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUFFER", str(buffer))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(RECIPES / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=int(PATIENCE), resources={"metadata": {"path": os.fspath(RECIPES)}}).execute()
    assert [cell.source for cell in notebook.cells if cell.outputs] == [
        notebook.cells[1].source,
        notebook.cells[2].source,
    ]
    assert notebook.cells[1].outputs[0].data["text/plain"] == "0"
    assert notebook.cells[2].outputs[0].text == """0 ['{"user":"ann"}', '{"user":"bob"}']\n"""
    assert not entries(open_store(buffer)), "the last but one cell has acked them"
