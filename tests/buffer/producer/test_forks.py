"""A producer belongs to the process that opened it: in a forked child it has no threads, and raises an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buffer.producer.forked_producers import USES, produce_anew_after_a_fork, use_after_a_fork
from tests.support.processes import Start

MANIFESTS = ["native"]


@pytest.mark.parametrize(
    ("use", "state"), [*((use, "open") for use in USES), ("produce", "done"), ("produce", "while locked")]
)
def test_in_a_forked_child_a_clear_error_is_raised_and_the_parent_goes_on(
    start: Start, tmp_path: Path, use: str, state: str
) -> None:
    raised, produced = start(use_after_a_fork, str(tmp_path), use, state).answer()
    assert raised.startswith("InvalidInput: ")
    assert "forked child" in raised
    assert produced == [b"before", *([b"meanwhile"] if state == "while locked" else []), b"after"]


def test_the_error_in_a_forked_child_says_to_open_a_new_producer(start: Start, tmp_path: Path) -> None:
    raised, _ = start(use_after_a_fork, str(tmp_path), "produce", "open").answer()
    assert "make a Producer here" in raised


def test_a_producer_opened_in_the_forked_child_works(start: Start, tmp_path: Path) -> None:
    raised, produced = start(produce_anew_after_a_fork, str(tmp_path)).answer()
    assert (raised, produced) == ("nothing was raised", [b"child", b"parent"])
