"""The import rule: which package may import which, and that it imports what the other's `__init__` has."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent

BOTTOM = {"errors", "metrics"}
_STORES = {"storage", "records", "core", *BOTTOM}
_ENGINES = {"buffer", "queue", "metalog", *_STORES}
BELOW = {
    "errors": set[str](),
    "metrics": set[str](),
    "core": BOTTOM,
    "records": {"core", *BOTTOM},
    "storage": {"core", *BOTTOM},
    "queue": _STORES,
    "buffer": _STORES,
    "metalog": _STORES,
    "engine": _ENGINES,
    "spark": {"engine", *_ENGINES},
    "cli": {"spark", "engine", *_ENGINES},
    "testing": _STORES,
}


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module that a module's code imports, anywhere in it; relative ones made absolute.

    With those that it names in a call of `import_module`; what `lazy_names` imports is always inside the package.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (name for name in constants if isinstance(name, str))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])]
                )
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_inside(name: str) -> bool:
    """Whether a name is of a module inside a package, and not of the package."""
    parts = name.split(".")[1:]
    at = SOURCE.joinpath(*parts)
    return len(parts) > 1 and (at.is_dir() or at.with_suffix(".py").is_file())


def forbidden(package: str, code: str) -> set[str]:
    """What a module of a package imports and may not."""
    wrong = set()
    for name in imports(ast.parse(code), f"penstock.{package}"):
        top, _, rest = name.partition(".")
        if top in {"pyspark", "py4j"} and package != "spark":
            wrong.add(name)
        other = rest.partition(".")[0]
        if top == "penstock" and other in BELOW and other != package:
            if other not in BELOW[package]:
                wrong.add(name)
            if is_inside(name) and not name.startswith(
                "penstock.core.lazy_names"
            ):  # which every `__init__` begins with
                wrong.add(name)
        if name == "penstock.__version__" and package != "cli":
            wrong.add(name)
    return wrong


def package_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if package_of(file) != "__init__"]


def test_the_packages_are_those_of_the_plan() -> None:
    assert {package_of(file) for file in FILES} == set(BELOW)


def test_no_package_imports_one_above_or_beside_it_or_past_its_init() -> None:
    found = {str(file.relative_to(SOURCE)): forbidden(package_of(file), file.read_text()) for file in FILES}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("storage", "from penstock.buffer import Producer"),
        ("storage", "def later():\n    import penstock.engine.block"),
        ("storage", "from penstock import queue"),
        ("buffer", "from ..queue import EventQueue"),
        ("buffer", "import penstock.testing"),
        ("core", "from penstock.storage import open_store"),
        ("engine", "import pyspark"),
        ("engine", "from pyspark.sql import SparkSession"),
        ("engine", "from penstock.buffer.config import ProducerConfig"),
        ("engine", "from penstock.buffer import config"),
        ("cli", "import penstock.buffer.manifest.queue"),
        ("testing", "from penstock.engine import BatchEngine"),
        ("errors", "from penstock import metrics"),
        ("storage", "if TYPE_CHECKING:\n    from penstock.buffer import Producer"),
        ("buffer", "importlib.import_module('penstock.queue')"),
        ("engine", "import_module('pyspark')"),
    ],
)
def test_an_import_against_the_rule_is_noticed(package: str, code: str) -> None:
    assert forbidden(package, code)


@pytest.mark.parametrize("package", sorted(BELOW))
def test_every_package_says_what_it_holds_and_what_it_may_import(package: str) -> None:
    file = SOURCE / package / "__init__.py" if (SOURCE / package).is_dir() else SOURCE / f"{package}.py"
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    assert "tree" in docstring if package == "errors" else "May import:" in docstring


def test_import_penstock_works_where_pyspark_is_absent() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import penstock; print(penstock.open_store('memory://x').url)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "memory://x"
