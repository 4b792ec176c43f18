"""What Penstock logs: whatever others wrote is escaped in it, and a message is one line."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.core.logs import MAX_SHOWN, get_logger
from penstock.errors import CorruptData, NotFound, PenstockError

HOSTILE = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x202E, 0xFEFF, 0xE0001])) + "\nINJECTED"
SOURCE = Path(penstock.__file__).parent


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a plain handler far above prints."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root = logging.getLogger("penstock")
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield out
    root.removeHandler(handler)
    root.setLevel(logging.NOTSET)


def lines_of(out: io.StringIO) -> list[str]:
    text = out.getvalue()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("INJECTED") for line in lines)
    return lines


class Odd:
    def __str__(self) -> str:
        return f"odd {HOSTILE}"

    def __repr__(self) -> str:
        return f"Odd({HOSTILE})"


@pytest.mark.parametrize("sign", ["%s", "%r"])
@pytest.mark.parametrize("value", [HOSTILE, Odd(), HOSTILE.encode(), [HOSTILE], ValueError(HOSTILE), NotFound(HOSTILE)])
def test_a_value_in_a_message_is_one_line(logged: io.StringIO, sign: str, value: object) -> None:
    get_logger("penstock.test").warning(f"met {sign} in %d of %.1f", value, 7, 0.5)
    (line,) = lines_of(logged)
    assert line.startswith("WARNING penstock.test met ")
    assert line.endswith(" in 7 of 0.5")


def test_a_plain_value_is_logged_as_it_is(logged: io.StringIO) -> None:
    get_logger("penstock.test").info("%s %r %s %d %s", "größe", "it's", None, 3, True)
    assert lines_of(logged) == ["""INFO penstock.test größe "it's" None 3 True"""]


def test_values_by_name_and_messages_that_are_foreign_are_escaped(logged: io.StringIO) -> None:
    get_logger("penstock.test").info("%(what)s", {"what": HOSTILE})
    get_logger("penstock.test").info(HOSTILE)
    get_logger("penstock.test").info(Odd())
    assert len(lines_of(logged)) == 3


def test_a_value_is_cut(logged: io.StringIO) -> None:
    get_logger("penstock.test").info("%s!", "x" * 1_000_000)
    (line,) = lines_of(logged)
    assert line.endswith("x...!")
    assert len(line) < MAX_SHOWN + 100


def test_a_traceback_has_the_messages_of_all_its_exceptions_on_one_line_each(logged: io.StringIO) -> None:
    log = get_logger("penstock.test")
    try:
        try:
            try:
                raise OSError(HOSTILE)
            except OSError as error:
                raise KeyError(HOSTILE) from error
        except KeyError:
            problem = RuntimeError(HOSTILE)
            problem.add_note(HOSTILE)
            raise problem  # noqa: B904  what it was raised during is to be in the traceback
    except RuntimeError:
        log.exception("failed")
        log.warning("failed", exc_info=True)
    lines = lines_of(logged)
    assert [line.partition(":")[0] for line in lines if "Error" in line and "raise" not in line] == [
        "OSError",
        "KeyError",
        "RuntimeError",
    ] * 2
    assert sum("direct cause" in line for line in lines) == sum("During handling" in line for line in lines) == 2


def test_the_text_of_an_error_is_one_line_and_its_arguments_are_as_they_were() -> None:
    for kind in (PenstockError, CorruptData, NotFound):
        assert str(kind(f"größe {HOSTILE}")).isprintable()
        assert str(kind("größe")) == "größe"
        assert kind(HOSTILE).args == (HOSTILE,)
        assert repr(kind(HOSTILE)).isprintable()


def calls(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_every_logger_comes_from_one_place_and_every_answer_goes_through_one(file: Path) -> None:
    name, called = str(file.relative_to(SOURCE)), set(calls(file))
    if not name.startswith("cli/") and name != "core/logs.py":
        assert "logging.getLogger" not in called
    if name != "cli/output.py":
        assert not called & {"typer.echo", "typer.secho", "click.echo", "print", "sys.stdout.write"}
