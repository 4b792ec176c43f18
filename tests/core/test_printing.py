"""Text of others on one line: what is escaped, what stays, and how long it may be."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.printing import printable

_ACTED_ON = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_ANY_TEXT = st.text(st.characters(codec=None, categories=None))


@pytest.mark.parametrize("category", sorted(_ACTED_ON))
def test_every_character_of_a_category_that_is_acted_on_is_escaped(category: str) -> None:
    chars = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) == category]
    shown = printable("".join(chars), 10 * len(chars))
    assert chars
    assert shown.isascii()
    assert shown.isprintable()


@given(_ANY_TEXT, st.integers(0, 40))
def test_nothing_that_is_acted_on_is_left_and_no_more_than_the_limit(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert not {unicodedata.category(char) for char in shown} & _ACTED_ON


@given(_ANY_TEXT)
def test_what_is_printable_is_not_changed_again(text: str) -> None:
    shown = printable(text, 1000)
    assert printable(shown, 1000) == shown


@pytest.mark.parametrize("text", ["größe", "日本語\u3000のキー", "ключ", "a\\nb", "[red]x[/red]", "", "é\u0301", "🙂"])
def test_letters_of_any_script_stay(text: str) -> None:
    assert printable(text, 100) == text


def test_an_escape_is_kept_whole_or_left_out() -> None:
    assert printable("ab\x1b\x1b", 10) == "ab\\x1b\\x1b"
    assert printable("ab\x1b\x1b\x1b", 10) == "ab\\x1b..."
    assert printable("\U000e0001" * 3, 12) == "..."


def test_a_long_text_is_cut_without_looking_at_all_of_it() -> None:
    class Counted(str):
        __slots__ = ()

        def isprintable(self) -> bool:
            raise AssertionError("all of it was looked at")

    assert printable(Counted("\n" * 1000), 8) == "\\n\\n..."
