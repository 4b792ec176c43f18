"""The project keeps its own rules: one version, exact constraints without addresses, targets that are explained."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock
from tests.support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return dict(re.fullmatch(r"([a-z0-9_.-]+)==([^\s;]+)", line, re.IGNORECASE).groups() for line in lines)  # type: ignore[union-attr,misc]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_version_is_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert importlib.metadata.version("penstock") == penstock.__version__


def test_the_constraints_are_exact_and_hold_no_address() -> None:
    assert len(pinned()) > 50
    assert "//" not in (ROOT / "constraints.txt").read_text()


def test_everything_that_is_installed_here_is_pinned_and_at_its_pin() -> None:
    pins = {normal(name): version for name, version in pinned().items()}
    installed = {normal(found.name): found.version for found in importlib.metadata.distributions()}
    wanted = _needed({"penstock"})
    assert {name: installed[name] for name in wanted} == {name: pins.get(name) for name in wanted}


def _needed(extra_roots: set[str]) -> set[str]:
    """Every distribution that Penstock with all its extras pulls in here, by name."""
    seen: set[tuple[str, str]] = set()
    todo = [(name, extra) for name in extra_roots for extra in ("", "spark", "delta", "iceberg", "kafka", "dev")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in importlib.metadata.requires(name) or []:
            needed, extras, marker = _parsed(line)
            if _is_installed(needed) and _applies(marker, extra):
                todo += [(needed, one) for one in ("", *extras)]
    return {name for name, _ in seen} - extra_roots


def _parsed(line: str) -> tuple[str, list[str], str]:
    requirement, _, marker = line.partition(";")
    match = re.match(r"\s*([A-Za-z0-9_.-]+)\s*(?:\[([^\]]*)\])?", requirement)
    assert match, line
    return normal(match[1]), [one.strip() for one in (match[2] or "").split(",") if one.strip()], marker


def _applies(marker: str, extra: str) -> bool:
    named = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    return named is None or normal(named[1]) == normal(extra)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def test_pandas_is_not_pulled_in() -> None:
    assert "pandas" not in {normal(name) for name in pinned()}


def test_the_extras_are_those_that_were_promised() -> None:
    assert set(PROJECT["optional-dependencies"]) == {
        "all",
        "avro",
        "delta",
        "dev",
        "iceberg",
        "kafka",
        "protobuf",
        "spark",
    }


def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(targets) == set(re.findall(r"^  make ([a-z-]+)", printed, re.MULTILINE))
    assert {"setup", "test", "lint", "demo", "bench", "docs", "clean"} <= set(targets)


@pytest.mark.parametrize("word", ["make lint", "make test", "make test-all"])
def test_ci_runs_what_a_developer_runs(word: str) -> None:
    assert word in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_two_commands_are_at_the_top_of_the_readme(command: str) -> None:
    top = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any(line.startswith(command) for line in top)


def find_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "find-python", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_python_that_is_given_is_checked_and_named_when_it_will_not_do(tmp_path: Path) -> None:
    old = tmp_path / "an old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    for given in (str(old), "no-such-python"):
        refused = find_python(given)
        assert refused.returncode == 1
        assert not refused.stdout
        assert f"{given} is none" in refused.stderr


def test_a_python_that_will_do_is_printed() -> None:
    assert find_python(sys.executable).stdout.strip() == sys.executable
