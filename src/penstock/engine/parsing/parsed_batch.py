"""`ParsedBatch`: the records of a block, and what their values say."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.dead_letters import DeadLetter
from penstock.engine.parsing.block_parser import ParsedValues, ParseError, ParseFormat, parse_values
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput, ParseFailed
from penstock.records import Record


class ParseErrorAction(StrEnum):
    """What becomes of a record that cannot be parsed."""

    DLQ = "dlq"
    SKIP = "skip"
    FAIL_BATCH = "fail_batch"


class ParsedBatch:
    """Records and what was parsed of them, aligned; only those that parsed.

    `parsed` has a dict for each record, `arrow` the same in columns. Records whose fields do not fit into columns with
    the others (a number here, a string there) are known when `arrow` is asked for: from then on they are parse errors,
    and gone from `records` and `parsed`.
    """

    def __init__(self, source: WorkBatch, values: ParsedValues, action: ParseErrorAction) -> None:
        self._source = source
        self._values = values
        self._action = action
        self._misfits: tuple[ParseError, ...] = ()
        self._arrow: pa.RecordBatch | None = None
        self._letters: list[DeadLetter] = []
        self._records: list[Record] | None = None
        self.commit_tokens = source.commit_tokens
        self.failure: ParseFailed | None = None
        self._is_sealed = False
        self._note(values.errors)

    @classmethod
    def parse(
        cls, batch: WorkBatch, parse_format: str = ParseFormat.JSON, on_error: str = ParseErrorAction.DLQ
    ) -> ParsedBatch:
        """Parse the values of a batch, as the engine does. Raises `ParseFailed` where `on_error` is fail_batch.

        >>> parsed = ParsedBatch.parse(WorkBatch([Record(b'{"id": 7}'), Record(b"{")]))
        >>> parsed.parsed, len(parsed.dead_letters)
        ([{'id': 7}], 1)
        """
        form = as_word("parse_format", ParseFormat, parse_format)
        action = as_word("on_error", ParseErrorAction, on_error)
        return cls(batch, parse_values(batch.record_columns.column("value"), form), action)

    @property
    def records(self) -> list[Record]:
        """The records that parsed."""
        if self._records is None:
            everything, rows = self._source.records, self._rows()
            self._records = everything if len(rows) == len(everything) else [everything[row] for row in rows]
        return self._records

    @property
    def parsed(self) -> list[dict[str, Any]]:
        """What each of them says."""
        if not self._misfits:
            return self._values.objects
        gone = {misfit.index for misfit in self._misfits}
        rows = zip(self._values.good, self._values.objects, strict=True)
        return [said for row, said in rows if row not in gone]

    @property
    def arrow(self) -> pa.RecordBatch:
        """The same in columns. Raises `ParseFailed` where a record that does not fit is to fail the block."""
        if self._arrow is None:
            arrow, misfits = self._values.columns()
            if misfits and self._is_sealed:
                raise InvalidInput(
                    "columns were asked for when the block was processed already, and there are records that do not "
                    "fit into them: ask for `arrow` in `process`"
                )
            if misfits:
                self._note(misfits)
                self._misfits, self._records = misfits, None
            self._arrow = arrow
        return self._arrow

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those that came with the block, and those that could not be parsed."""
        return (*self._source.dead_letters, *self._letters)

    @property
    def errors(self) -> int:
        """How many records could not be parsed."""
        return len(self._values.errors) + len(self._misfits)

    @property
    def is_empty(self) -> bool:
        """Whether none parsed."""
        return len(self) == 0

    def __len__(self) -> int:
        return len(self._values) - len(self._misfits)

    def __bool__(self) -> bool:
        return True  # a block without records has acks all the same

    def __repr__(self) -> str:
        return f"ParsedBatch({len(self)} records, {self.errors} parse errors, {len(self.commit_tokens)} commit tokens)"

    def seal(self) -> None:
        """Say that its dead letters are about to be routed: there can be no more of them."""
        if self.failure is not None:
            raise self.failure  # `process` may have caught it
        self._is_sealed = True

    def _rows(self) -> list[int]:
        gone = {misfit.index for misfit in self._misfits}
        return [row for row in self._values.good if row not in gone]

    def _note(self, errors: tuple[ParseError, ...]) -> None:
        if not errors or self._action is ParseErrorAction.SKIP:
            return
        if self._action is ParseErrorAction.FAIL_BATCH:
            first = errors[0]
            self.failure = ParseFailed(
                f"{len(errors)} of {len(self._source)} records cannot be parsed; the first is record {first.index} of "
                f"the block: {first.reason}. Nothing of it was committed; parse_error_action='dlq' sets them aside"
            )
            raise self.failure
        self._letters += [
            DeadLetter.of(self._source.record(error.index), error.reason, stage="parse") for error in errors
        ]
