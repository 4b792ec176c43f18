"""Half of a surrogate pair is named as what it is, with its place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.engine import ParseFormat, ParseOptions
from tests.engine.parsing.models import every_way, verify

TEXT = pa.schema([("a", pa.string())])
IS_LONE = "is a lone surrogate: half of a pair, and no character"
LONE = {
    b'{"a": "\\ud800"}': rf"the escape \ud800 at byte 7, in the field 'a', {IS_LONE}",
    b'{"a": "\\udC00x"}': rf"the escape \udC00 at byte 7, in the field 'a', {IS_LONE}",
    b'{"a": "\\ud83d\\ude00 \\uD83D\\u0041"}': rf"the escape \uD83D at byte 20, in the field 'a', {IS_LONE}",
    b'{"x": {"y z": [1, [{"b": "\\ud800"}]]}}': rf"the escape \ud800 at byte 26, in the field 'x.y z[][].b', {IS_LONE}",
    b'{"x": [{}, "\\\\\\ud800"]}': rf"the escape \ud800 at byte 14, in the field 'x[]', {IS_LONE}",
    b'{"\\ud800": 1}': rf"the escape \ud800 at byte 2, in the name of a field, {IS_LONE}",
    b'{"b": 1, "c": {"\\ud800": 1}}': rf"the escape \ud800 at byte 16, in the name of a field of 'c', {IS_LONE}",
}


@pytest.mark.parametrize(("payload", "reason"), LONE.items())
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_a_lone_surrogate_is_named_with_its_place(payload: bytes, reason: str, mode: str) -> None:
    rows, errors = every_way([payload, b'{"a": "x"}'], TEXT, ParseFormat.JSON, ParseOptions(mode))
    assert (len(rows), errors) == (1, {0: reason})
    verify([payload], ParseFormat.JSON)


def test_a_payload_with_something_else_wrong_has_that_reason() -> None:
    _, errors = every_way([b'{"a": "\\ud800"', b'{"a": "\\\\ud800"', b'{"a": "\\u12"}'], TEXT)
    assert all("surrogate" not in reason for reason in errors.values())


def test_pairs_and_escaped_backslashes_are_text() -> None:
    rows, errors = every_way([b'{"a": "\\ud83d\\uDE00"}', b'{"a": "\\\\ud800"}'], TEXT)
    assert (rows, errors) == ([{"a": "😀"}, {"a": "\\ud800"}], {})
