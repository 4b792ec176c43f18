"""The table of commands: complete, true to the commands' own help, and `penstock --help` loads nothing of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import typer

import penstock.cli
from penstock.cli.commands import COMMANDS, load
from tests.support.command import Here
from tests.test_lazy_names import run as run_code

HEAVY = {"pyarrow", "prometheus_client", "obstore", "rocksdict", "pyspark", "py4j", "msgspec", "asyncio", "http.server"}
CLI = Path(penstock.cli.__file__).parent


def commands_in(file: Path) -> set[str]:
    """The commands that a module defines, by the way they are named."""
    tree = ast.parse(file.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}
    own = {name for name in functions if name.endswith("_command") and name != "upgrade_command"}
    return {name.rpartition("_")[0] for name in own | {one for one in assigned if one.endswith("_app")}}


def test_every_command_that_a_module_defines_is_in_the_table() -> None:
    defined = {file.stem: commands_in(file) for file in CLI.glob("*.py")}
    assert {name: {name} for name in COMMANDS} == {
        module.rstrip("_"): names for module, names in defined.items() if names
    }


def test_the_help_is_the_one_that_all_commands_would_give_if_they_were_loaded(here: Here) -> None:
    loaded = typer.Typer(name="penstock", add_completion=False)

    @loaded.callback()
    def options(
        version: bool = typer.Option(False, "--version", help="Show the version."),
    ) -> None:
        """Durable event pipelines for Spark, without a broker."""

    for name in COMMANDS:
        found = load(name)
        if isinstance(found, typer.Typer):
            loaded.add_typer(found, name=name)
        else:
            loaded.command(name)(found)
    shown = here("--help")
    assert shown == here("--help", main=loaded)
    assert shown.status == 0


def test_every_command_says_more_when_it_is_asked(here: Here) -> None:
    for name, text in COMMANDS.items():
        shown = here(name, "--help")
        assert shown.status == 0
        assert text in " ".join(shown.out.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["stauts"], []])
def test_what_needs_no_command_loads_none(words: list[str]) -> None:
    code = "import sys\nfrom penstock.cli.app import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    loaded = set(run_code(f"{code}print(*sys.modules)", *words).split())
    assert not loaded & (HEAVY | {f"penstock.cli.{name}" for name in COMMANDS})


def test_a_mistyped_command_is_answered_with_the_right_one(here: Here) -> None:
    done = here("stauts")
    assert done.status == 2
    assert "No such command 'stauts'. Did you mean 'status'?" in " ".join(done.err.replace("│", " ").split())


def test_a_command_that_prints_no_table_loads_nothing_to_print_them(tmp_path: Path) -> None:
    code = "import sys\nfrom penstock.cli.app import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
    printed = run_code(f"{code}print('rich' in sys.modules)", "groups", "list", "--json", str(tmp_path)).split()
    assert printed[-1] == "False"
