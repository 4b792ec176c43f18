"""The letters of tables, under the names that they had in this package before the engine had letters of its own."""

from __future__ import annotations

from penstock.engine import Filter, Ledger, Replay, Replayed, StoredLetter, Target, letters_in

__all__ = ["Filter", "Ledger", "Replay", "Replayed", "StoredLetter", "Target", "letters_in"]
