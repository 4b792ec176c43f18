"""The tree of exceptions: what is drawn is what is there, and every branch survives a process boundary."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from penstock import errors

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
