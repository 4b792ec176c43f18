"""What is open until it is closed."""

from __future__ import annotations

import logging
import os

import pytest

from penstock.core import Closing
from penstock.errors import Closed, InvalidInput, StorageError


class Door(Closing):
    """Something that can be closed, and may fail to."""

    _instead_in_child = "make another"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error

    def __repr__(self) -> str:
        return "Door()"

    def close(self) -> None:
        self._is_closed = True
        if self._error is not None:
            raise self._error

    def enter(self) -> None:
        self._check_process()
        self._check_open()


def test_it_is_open_within_a_with_statement_and_closed_behind_it() -> None:
    with Door() as door:
        door.enter()
    with pytest.raises(Closed, match=r"Door\(\) is closed"):
        door.enter()


def test_an_error_of_closing_is_raised_but_never_hides_another(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StorageError), Door(StorageError("down")):
        pass
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="first"), Door(StorageError("down")):
        raise ValueError("first")
    assert "closing Door() failed too" in caplog.text


def test_the_error_in_a_forked_child_names_what_to_do_instead() -> None:
    door = Door()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            door.enter()
        except InvalidInput as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read().endswith("make another")
    door.enter()
