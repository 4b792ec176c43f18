"""A producer belongs to the process that made it: in a forked child its threads do not exist, and it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buffer.producer.forked_producers import USES, produce_anew_after_a_fork, use_after_a_fork
from tests.support.processes import Start

MANIFESTS = ["native", pytest.param("opendata", marks=pytest.mark.chaos)]


@pytest.mark.parametrize("taken", ["open", "done", "while locked"])
@pytest.mark.parametrize("use", USES)
def test_in_a_forked_child_a_clear_error_is_raised_and_the_parent_goes_on(
    start: Start, tmp_path: Path, use: str, taken: str
) -> None:
    raised, landed = start(use_after_a_fork, str(tmp_path), use, taken).answer()
    assert raised.startswith("InvalidInput: ")
    assert "forked child" in raised
    assert landed == [b"before", *([b"meanwhile"] if taken == "while locked" else []), b"after"]


def test_a_forked_child_is_told_to_make_a_producer_of_its_own(start: Start, tmp_path: Path) -> None:
    raised, _ = start(use_after_a_fork, str(tmp_path), "produce", "open").answer()
    assert "make a Producer here" in raised


def test_a_producer_made_in_the_forked_child_works(start: Start, tmp_path: Path) -> None:
    raised, landed = start(produce_anew_after_a_fork, str(tmp_path)).answer()
    assert (raised, landed) == ("nothing was raised", [b"child", b"parent"])
