"""The documentation is true: its Python runs, its tables are complete, it builds without a warning."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import metrics
from penstock.testing import Fault
from tests.support.repository import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_python_block_runs_as_printed(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if example.name == "count_together.py":
        assert done.stdout.startswith("200 increments")


def test_every_metric_is_in_the_operations_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for metric in metrics.ALL:
        described = next(iter(metric.describe()))
        name = f"{described.name}_total" if described.type == "counter" else described.name
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` ")), None)
        assert row, name
        assert all(f"`{label}`" in row for label in metric._labelnames)


def test_every_fault_is_in_the_testing_page() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE) == [fault.name for fault in Fault]


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "index.html").exists()
