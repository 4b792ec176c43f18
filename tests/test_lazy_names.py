"""The public names of packages: all there, imported when they are first used, and `import penstock` loads little."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent
PACKAGES = [
    "penstock",
    *(f"penstock.{name}" for name in ("core", "storage", "queue", "buffer", "metalog", "engine", "spark")),
]
HEAVY = {
    "asyncio",
    "confluent_kafka",
    "http",
    "msgspec",
    "numpy",
    "obstore",
    "pandas",
    "prometheus_client",
    "py4j",
    "pyarrow",
    "pyspark",
    "rich",
    "rocksdict",
    "typer",
    "ulid",
}


def run(code: str, *words: str) -> str:
    """What a Python of its own prints: this one has loaded everything."""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a new Python has loaded after some code."""
    return set(run(f"{code}\nimport sys; print(*(name.partition('.')[0] for name in sys.modules))").split())


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    name: str = request.param
    return importlib.import_module(name)


def tables_of(package: ModuleType) -> tuple[dict[str, set[str]], dict[str, set[str]], list[str]]:
    """What a package imports for type checkers, what it names for later, and its submodules, from its source."""
    tree = ast.parse(Path(package.__file__ or "").read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    checked = dict[str, set[str]]()
    for node in branch.body:
        assert isinstance(node, ast.ImportFrom)
        checked.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    [assignment] = branch.orelse
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.Call)
    later = {
        f"{package.__name__}.{module}": set(names.split())
        for module, names in ast.literal_eval(assignment.value.args[1]).items()
    }
    [submodules] = [ast.literal_eval(word.value) for word in assignment.value.keywords] or [()]
    return checked, later, list(submodules)


def test_import_penstock_loads_no_library_but_pythons_own() -> None:
    assert not loaded_after("import penstock") & HEAVY


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_package_alone_loads_no_library_either(name: str) -> None:
    assert not loaded_after(f"import {name}, penstock.errors") & HEAVY


def test_a_queue_in_memory_needs_neither_arrow_nor_metrics() -> None:
    loaded = loaded_after("import penstock; queue = penstock.EventQueue(); queue.push(b'x'); queue.pop()")
    assert not loaded & {"pyarrow", "prometheus_client", "rocksdict", "obstore", "asyncio"}


@pytest.mark.parametrize("name", ["Producer", "Consumer", "DurableEventQueue"])
def test_what_does_not_wait_in_an_event_loop_loads_none(name: str) -> None:
    loaded = loaded_after(f"from penstock import {name}")
    assert not loaded & {"asyncio", "obstore", "typer", "rich", "pyspark", "py4j", "confluent_kafka", "pandas", "numpy"}


def test_what_type_checkers_see_is_what_is_there(package: ModuleType) -> None:
    checked, later, submodules = tables_of(package)
    assert checked.pop(package.__name__, set()) == set(submodules)
    assert checked == later
    # A package also has names for the other packages, which are no part of the public contract.
    assert set(package.__all__) <= {name for names in later.values() for name in names}


def test_every_public_name_can_be_had(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name)


def test_no_public_name_is_that_of_a_submodule(package: ModuleType) -> None:
    """Importing the submodule would put it in the place of what the name stands for."""
    folder = Path(package.__file__ or "").parent
    assert not set(package.__all__) & {path.stem for path in folder.iterdir()}


def test_a_star_import_brings_every_public_name(package: ModuleType) -> None:
    there = run(f"from {package.__name__} import *; print(*globals())").split()
    assert set(package.__all__) <= set(there)


def test_dir_lists_every_public_name_before_it_is_used(package: ModuleType) -> None:
    listed = run(f"import {package.__name__} as package; print(*dir(package))").split()
    assert set(package.__all__) <= set(listed)
    assert "__name__" in listed


def test_a_name_that_is_not_there_is_an_error_as_ever(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'Prodoucer'") as raised:
        _ = package.Prodoucer
    assert (raised.value.name, raised.value.obj) == ("Prodoucer", package)
    with pytest.raises(ImportError, match="cannot import name 'Prodoucer'"):
        exec(f"from {package.__name__} import Prodoucer")


def test_a_misspelled_name_is_answered_with_the_right_one() -> None:
    code = "import penstock; penstock.Prodoucer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Did you mean: 'Producer'?" in done.stderr


def test_the_packages_below_are_attributes_without_an_import_of_their_own() -> None:
    code = "import penstock; print(penstock.errors.Fenced.__name__, penstock.storage.open_store('memory://x').url)"
    assert run(code).split() == ["Fenced", "memory://x"]


def test_a_class_is_pickled_by_the_module_that_defines_it() -> None:
    assert b"penstock.buffer.config" in pickle.dumps(penstock.ProducerConfig)
    assert pickle.loads(pickle.dumps(penstock.ProducerConfig)) is penstock.ProducerConfig


@pytest.mark.parametrize(
    "name",
    ["penstock"] + [f"penstock.{name}" for name in ("core", "storage", "queue", "buffer", "engine", "metalog")],
)
def test_the_type_hints_of_public_classes_can_be_resolved(name: str) -> None:
    package = importlib.import_module(name)
    for public in (getattr(package, one) for one in package.__all__):
        for part in (public, *vars(public).values()) if inspect.isclass(public) else ():
            if inspect.isclass(part) or inspect.isfunction(part):
                typing.get_type_hints(part)


def test_a_name_is_looked_up_once() -> None:
    code = "import penstock; first = penstock.Record; print('Record' in vars(penstock), penstock.Record is first)"
    assert run(code).split() == ["True", "True"]


def test_a_module_that_cannot_be_imported_is_that_error_and_no_missing_name() -> None:
    code = """
import sys
sys.modules["penstock.queue.durable"] = None
import penstock
try:
    penstock.DurableEventQueue
except ImportError as error:
    print(error.name)
"""
    assert run(code).strip() == "penstock.queue.durable"
