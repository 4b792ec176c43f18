"""The tree of exceptions: what is drawn is what is there, and every branch survives a process boundary."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re

import pytest

from penstock import Consumer, EventQueue, errors
from penstock.errors import BackpressureTimeout, Fenced, InvalidInput, OutOfOrderAck
from tests.support.repository import ROOT

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, errors.PenstockError)]


def drawn() -> dict[str, str]:
    """Child and parent of every line of the drawing in the module's docstring."""
    assert errors.__doc__
    above: list[tuple[int, str]] = [(-1, "Exception")]
    parents = {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s{2,}|$)", line)
        if not match:
            continue
        depth = len(match[1])
        while above[-1][0] >= depth:
            above.pop()
        parents[match[2]] = above[-1][1]
        above.append((depth, match[2]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    assert drawn() == {found.__name__: found.__bases__[0].__name__ for found in CLASSES}


@pytest.mark.parametrize("found", CLASSES)
def test_every_error_survives_pickling(found: type[errors.PenstockError]) -> None:
    error = found(7, 4) if found is errors.PartitionOutOfRange else found("what happened, to what, what to do")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is found
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_the_promised_relatives() -> None:
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.BackpressureTimeout, TimeoutError)
    for child in (errors.NotFound, errors.AlreadyExists, errors.Conflict, errors.OutcomeUnknown):
        assert issubclass(child, errors.StorageError)


def attributes(found: type[errors.PenstockError]) -> set[str]:
    """What a constructor of an error accepts beside its text."""
    own = inspect.signature(found.__init__).parameters.values() if "__init__" in vars(found) else ()
    return {one.name for one in own if one.kind is not one.VAR_POSITIONAL} - {"self"}


def test_the_page_of_errors_lists_the_attributes_of_each() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    listed = {
        name: set(re.findall(r"`(\w+)`", row))
        for name, row in re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    }
    assert listed == {found.__name__: attributes(found) for found in CLASSES if attributes(found)}


@pytest.mark.parametrize("found", [found for found in CLASSES if attributes(found)])
def test_attributes_are_kept_by_copy_and_pickle(found: type[errors.PenstockError]) -> None:
    given = {name: ("a",) if name == "routes" else 7 for name in attributes(found)}
    error = found(7, 7) if found is errors.PartitionOutOfRange else found("text", **given)
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert {name: getattr(again, name) for name in given} == given
        assert str(again) == str(error)


def test_an_ack_out_of_order_has_what_is_due() -> None:
    consumer = Consumer("memory://errors-ack")
    with pytest.raises(OutOfOrderAck) as raised:
        consumer.ack(3)
    assert (raised.value.sequence, raised.value.expected) == (3, None)


def test_a_fence_has_both_epochs() -> None:
    consumer = Consumer("memory://errors-fence")
    Consumer("memory://errors-fence")
    with pytest.raises(Fenced) as raised:
        consumer.flush()
    assert (raised.value.epoch, raised.value.current_epoch) == (1, 2)


def test_a_timeout_for_space_has_its_seconds() -> None:
    queue = EventQueue[bytes](maxsize=1)
    queue.push(b"1")
    with pytest.raises(BackpressureTimeout) as raised:
        queue.push(b"2", timeout=0.01)
    with pytest.raises(BackpressureTimeout) as again:
        asyncio.run(queue.push_async(b"2", timeout=0.02))
    assert (raised.value.timeout, again.value.timeout) == (0.01, 0.02)


def test_to_resume_on_a_buffer_that_never_had_an_entry_says_why_not_and_how_to_go_on() -> None:
    with pytest.raises(InvalidInput, match=r"has never had an entry.*leave last_acked_sequence out.*allow_gap=True"):
        Consumer("memory://errors-resume", last_acked_sequence=3)
