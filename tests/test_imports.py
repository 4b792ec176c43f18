"""The rooms of the house: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent

BELOW = {
    "errors": set[str](),
    "metrics": set[str](),
    "lazy_names": set[str](),
    "records": {"errors", "metrics"},
    "storage": {"errors", "metrics", "lazy_names"},
    "queue": {"storage", "records", "errors", "metrics", "lazy_names"},
    "buffer": {"storage", "records", "errors", "metrics", "lazy_names"},
    "metalog": {"storage", "records", "errors", "metrics", "lazy_names"},
    "engine": {"buffer", "queue", "metalog", "storage", "records", "errors", "metrics", "lazy_names"},
    "spark": {"engine", "buffer", "queue", "metalog", "storage", "records", "errors", "metrics"},
    "cli": {"spark", "engine", "buffer", "queue", "metalog", "storage", "records", "errors", "metrics"},
    "testing": {"storage", "records", "errors", "metrics"},
}


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module that a module's code imports, anywhere in it; relative ones made absolute.

    With those that it names for later: in a call of `lazy_names` or of `import_module`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in {"lazy_names", "import_module"}:
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


def reaches(room: str, code: str) -> set[str]:
    """What a module of a room imports and may not."""
    wrong = set()
    for name in imports(ast.parse(code), f"penstock.{room}"):
        top, _, rest = name.partition(".")
        if top in {"pyspark", "py4j"} and room != "spark":
            wrong.add(name)
        other = rest.partition(".")[0]
        if top == "penstock" and other in BELOW and other != room and other not in BELOW[room]:
            wrong.add(name)
        if name == "penstock.__version__" and room != "cli":
            wrong.add(name)
    return wrong


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if room_of(file) != "__init__"]


def test_the_rooms_are_those_of_the_plan() -> None:
    assert {room_of(file) for file in FILES} == set(BELOW)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_room_reaches_upwards_or_sideways(file: Path) -> None:
    assert reaches(room_of(file), file.read_text()) == set()


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("storage", "from penstock.buffer import Producer"),
        ("storage", "def later():\n    import penstock.engine.block"),
        ("storage", "from penstock import queue"),
        ("buffer", "from ..queue import EventQueue"),
        ("buffer", "import penstock.testing"),
        ("engine", "import pyspark"),
        ("engine", "from pyspark.sql import SparkSession"),
        ("testing", "from penstock.engine import BatchEngine"),
        ("errors", "from penstock import metrics"),
        ("storage", "if TYPE_CHECKING:\n    from penstock.buffer import Producer"),
        (
            "storage",
            "__getattr__, __dir__ = lazy_names(__name__, {'penstock.buffer.producer.producer': ('Producer',)})",
        ),
        ("buffer", "importlib.import_module('penstock.queue')"),
        ("engine", "import_module('pyspark')"),
    ],
)
def test_reaching_upwards_or_sideways_is_noticed(room: str, code: str) -> None:
    assert reaches(room, code)


@pytest.mark.parametrize("room", sorted(BELOW))
def test_every_room_says_what_lives_there_and_what_it_may_import(room: str) -> None:
    file = SOURCE / room / "__init__.py" if (SOURCE / room).is_dir() else SOURCE / f"{room}.py"
    said = ast.get_docstring(ast.parse(file.read_text())) or ""
    if room == "errors":
        assert "tree" in said
        return
    assert "May import:" in said


def test_import_penstock_works_where_pyspark_is_absent() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import penstock; print(penstock.open_store('memory://x').url)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "memory://x"
