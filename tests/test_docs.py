"""The documentation is true: its Python runs, its tables are complete, every public name is in it, and it builds."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import ConsumerConfig, ProducerConfig, metrics
from penstock.engine import ByteBudgetConfig, EngineConfig, Hysteresis
from penstock.metalog import ObjectLogSettings
from penstock.testing import Fault
from tests.support.repository import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted(DOCS.rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}", marks=[pytest.mark.slow] * ("SparkSession" in block))
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
]
PACKAGES = ["buffer", "engine", "metalog", "queue", "spark", "storage", "testing"]
CONFIGS = [ByteBudgetConfig, ConsumerConfig, EngineConfig, Hysteresis, ObjectLogSettings, ProducerConfig]
LONGEST_LINE = 120


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(*words: str, in_folder: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *words], cwd=in_folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS)
def test_every_python_block_runs_as_printed(block: str, tmp_path: Path) -> None:
    run("-W", "error", "-c", block, in_folder=tmp_path)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    printed = run("-W", "error", str(example), str(tmp_path), in_folder=tmp_path)
    assert example.name != "count_together.py" or printed.startswith("200 increments")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_text_are_wrapped(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    long = [line for line in text.splitlines() if len(line) > LONGEST_LINE and not line.lstrip().startswith("|")]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_names_parts_and_processes_and_no_persons(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    assert not re.findall(r"\b(?:who|some|no|any|every)(?:ever|body)\b|\b(?:room|house)s?\b", text, re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = re.findall(
        r"`((?:tests|scripts|bench|examples|docs|src/penstock)/[\w./-]+\.(?:py|md|sh))`", page.read_text()
    )
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_its_entry_in_the_reference(package: str) -> None:
    module = importlib.import_module(f"penstock.{package}")
    page = (REFERENCE / "api" / f"{package}.md").read_text()
    entries = re.findall(rf"^::: penstock\.{package}\.(\w+)$", page, re.MULTILINE)
    assert sorted(entries) == sorted(module.__all__)


def test_every_name_of_penstock_itself_leads_to_its_entry() -> None:
    page = (REFERENCE / "api" / "penstock.md").read_text()
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\[([\w.]+)\] \|", page, re.MULTILINE))
    assert sorted(rows) == sorted(importlib.import_module("penstock").__all__)
    for name, entry in rows.items():
        assert entry.endswith(f".{name}")
        assert f"::: {entry}\n" in (REFERENCE / "api" / f"{entry.split('.')[1]}.md").read_text()


def test_the_page_of_errors_is_made_of_their_module() -> None:
    assert "\n::: penstock.errors\n" in (REFERENCE / "errors.md").read_text()


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    assert run("scripts/cli_reference.py") == (REFERENCE / "cli.md").read_text(), (
        "python scripts/cli_reference.py > docs/reference/cli.md"
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_field_of_a_configuration_is_in_the_page_of_options(config: type) -> None:
    page = (REFERENCE / "options.md").read_text()
    _, _, section = page.partition(f"## {config.__name__}\n")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section.partition("\n## ")[0], re.MULTILINE)
    defaults = config()  # some are made when a configuration is made
    assert rows == [(field.name, _printed(getattr(defaults, field.name))) for field in dataclasses.fields(config)]


def _printed(default: object) -> str:
    return repr(str(default) if isinstance(default, str) else default)


def test_every_metric_is_in_the_page_of_metrics() -> None:
    page = (REFERENCE / "metrics.md").read_text()
    for metric in metrics.ALL:
        described = next(iter(metric.describe()))
        name = f"{described.name}_total" if described.type == "counter" else described.name
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` ")), None)
        assert row, name
        assert all(f"`{label}`" in row for label in metric._labelnames)


def test_every_fault_is_in_the_page_of_testing() -> None:
    page = (DOCS / "guides" / "testing.md").read_text()
    assert re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE) == [fault.name for fault in Fault]


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning_and_loads_nothing_from_the_net(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = "".join(page.read_text() for page in site.rglob("*.html"))
    assert not re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', pages)
