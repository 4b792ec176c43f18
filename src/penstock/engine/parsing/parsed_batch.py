"""`ParsedBatch`: the records of a block, and what their values say; `columns` makes a function of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias, cast

import pyarrow as pa

from penstock.core import as_word
from penstock.engine.dead_letters import DeadLetter, Place
from penstock.engine.parsing.parse_options import STRICT, ParseOptions
from penstock.engine.parsing.parser import parse_as, parse_inferred, parse_objects
from penstock.engine.parsing.payload_format import ParseError, ParseFormat
from penstock.engine.parsing.payload_schemas import NO_SCHEMAS, PayloadSchemas
from penstock.engine.work_batch import WorkBatch
from penstock.errors import InvalidInput, ParseFailed
from penstock.records import Record

ColumnFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]

ERROR, RAW = "_error", "_raw"


class ParseErrorAction(StrEnum):
    """What becomes of a record that cannot be parsed."""

    DLQ = "dlq"
    SKIP = "skip"
    FAIL_BATCH = "fail_batch"


class ParsedBatch:
    """Records and what was parsed of them, aligned; only those that parsed.

    `parsed` has a dict for each record, `arrow` the same in columns; the block is parsed into what is asked for first.
    Records whose fields do not fit into columns with the others (a number here, a string there) are known when `arrow`
    is asked for: from then on they are parse errors, and gone from `records` and `parsed`.
    """

    def __init__(
        self,
        source: WorkBatch,
        form: ParseFormat,
        action: ParseErrorAction,
        schema: pa.Schema | None = None,
        options: ParseOptions = STRICT,
        payload_schemas: PayloadSchemas = NO_SCHEMAS,
        *,
        place: Place | None = None,
    ) -> None:
        self._source = source
        self._place = source.place.of_own_parser() if place is None else place
        self._form = form
        self._action = action
        self._schema = schema
        self._options = options
        self._payload_schemas = payload_schemas
        self._good: Sequence[int] | None = None  # None until the block is parsed
        self._objects: list[Any] | None = None
        self._arrow: pa.RecordBatch | None = None
        self._records: list[Record] | None = None
        self._letters: list[DeadLetter] = []
        self._is_sealed = False
        self.commit_tokens = source.commit_tokens
        self.failure: ParseFailed | None = None

    @classmethod
    def parse(
        cls,
        batch: WorkBatch,
        parse_format: str = ParseFormat.JSON,
        on_error: str = ParseErrorAction.DLQ,
        schema: pa.Schema | None = None,
        options: ParseOptions = STRICT,
        payload_schemas: PayloadSchemas = NO_SCHEMAS,
        *,
        place: Place | None = None,
    ) -> ParsedBatch:
        """Parse the values of a batch, as the engine does. Raises `ParseFailed` where `on_error` is fail_batch.

        With a schema `arrow` has its columns, as `parse_as` reads them with these options; without one they are those
        that the values have, and options are `InvalidInput`. Formats that need a schema of the payloads have it in
        `payload_schemas`. `place` is for the engine: where in its run the batch is.

        >>> parsed = ParsedBatch.parse(WorkBatch([Record(b'{"id": 7}'), Record(b"{")]))
        >>> parsed.parsed, len(parsed.dead_letters)
        ([{'id': 7}], 1)
        """
        form = as_word("parse_format", ParseFormat, parse_format)
        action = as_word("on_error", ParseErrorAction, on_error)
        if schema is None and options != STRICT:
            raise InvalidInput("options say how values are parsed into the columns of a schema: give a schema too")
        payload_schemas.check("parse_format", form)
        parsed = cls(batch, form, action, schema, options, payload_schemas, place=place)
        if action is ParseErrorAction.FAIL_BATCH:
            parsed._rows()
        return parsed

    @property
    def records(self) -> list[Record]:
        """The records that parsed."""
        if self._records is None:
            everything, rows = self._source.records, self._rows()
            self._records = everything if len(rows) == len(everything) else [everything[row] for row in rows]
        return self._records

    @property
    def parsed(self) -> list[Any]:
        """What each of them says: a dict, or with `json-values` any value."""
        if self._objects is None:
            rows = self._good
            found = parse_objects(self._values(), self._form, self._options, **self._formats())
            self._objects = found.objects
            if rows is None:
                self._settle(found.good, found.errors)
        return self._objects

    @property
    def arrow(self) -> pa.RecordBatch:
        """The same in columns. Raises `ParseFailed` where a record that does not fit is to fail the block."""
        if self._arrow is None:
            if self._schema is None:
                found = parse_inferred(self._values(), self._form, **self._formats())
            else:
                found = parse_as(self._values(), self._schema, self._form, self._options, **self._formats())
            if found.errors and self._is_sealed:
                raise InvalidInput(
                    "columns were asked for when the block was processed already, and there are records that do not "
                    "fit into them: ask for `arrow` in `process`"
                )
            if self._objects is not None:
                self._objects = [self._objects[at] for at in found.good] if found.errors else self._objects
            self._settle(found.good, found.errors)
            self._arrow = found.batch
        return self._arrow

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Those that came with the block, and those that could not be parsed and were not dropped."""
        self._rows()
        dropped = self._place.dropped
        return (*self._source.dead_letters, *(letter for letter in self._letters if letter.identity not in dropped))

    def drop_letter(self, letter: DeadLetter) -> bool:
        """Drop a dead letter of the parser on purpose: it is counted, and not routed. For `process`.

        As `WorkBatch.drop_letter`: False for one that is routed already, `InvalidInput` for one that is new. Where no
        record of a block (or of a piece of it) parses, `process` is not called, and all its letters are routed.
        """
        return self._place.drop(letter)

    @property
    def errors(self) -> int:
        """How many records could not be parsed."""
        return len(self._source) - len(self)

    @property
    def is_empty(self) -> bool:
        """Whether none parsed. This parses no more than it takes to find one."""
        if self._good is not None:
            return not self._good
        values, formats = self._values(), self._formats()
        headers = formats["headers"]
        for row in range(len(values)):
            formats["headers"] = None if headers is None else headers.slice(row, 1)
            if parse_objects(values.slice(row, 1), self._form, self._options, **formats).objects:
                return False
        return True

    def __len__(self) -> int:
        return len(self._rows())

    def __bool__(self) -> bool:
        return True  # a block without records has acks all the same

    def __repr__(self) -> str:
        parsed = "" if self._good is None else f", {self.errors} parse errors"
        return f"ParsedBatch({len(self._source)} records{parsed}, {len(self.commit_tokens)} commit tokens)"

    def seal(self) -> None:
        """Say that its dead letters are about to be routed: there can be no more of them."""
        if self.failure is not None:
            raise self.failure  # `process` may have caught it
        self._rows()
        self._is_sealed = True

    def _rows(self) -> Sequence[int]:
        """The rows of the source that parsed."""
        if self._good is None:
            _ = self.parsed
        return self._good or ()

    def _values(self) -> Any:
        """The values of the rows that parsed so far."""
        return self._of_good_rows(self._source.record_columns.column("value"))

    def _formats(self) -> dict[str, Any]:
        """What the format of each value depends on."""
        records = self._source.record_columns
        has_use = self._form is ParseFormat.AUTO and "headers" in records.schema.names
        headers = self._of_good_rows(records.column("headers")) if has_use else None
        return {"payload_schemas": self._payload_schemas, "headers": headers}

    def _of_good_rows(self, column: Any) -> Any:
        good = self._good
        return column if good is None or len(good) == len(column) else column.take(pa.array(good, pa.int64()))

    def _settle(self, good: Sequence[int], errors: Sequence[ParseError]) -> None:
        """Note which of the values parsed, counted among those that had parsed before."""
        before = self._good
        if before is not None:
            good = [before[at] for at in good] if errors else before
            errors = [ParseError(before[error.index], error.reason) for error in errors]
        if errors and self._action is ParseErrorAction.FAIL_BATCH:
            first = errors[0]
            self.failure = ParseFailed(
                f"{len(errors)} of {len(self._source)} records cannot be parsed; the first is record {first.index} of "
                f"the block: {first.reason}. Nothing of it was committed; parse_error_action='dlq' sets them aside"
            )
            raise self.failure
        if errors and self._action is ParseErrorAction.DLQ:
            self._letters += [
                DeadLetter.of(
                    self._source.record(error.index),
                    error.reason,
                    stage="parse",
                    identity=self._place.identity(error.index, "parse"),
                )
                for error in errors
            ]
        self._good = good
        self._records = None if errors else self._records


def columns(fn: ColumnFunction) -> Callable[[ParsedBatch], WorkBatch]:
    """Make a `process` function, for `parse=True`, of a function from a record batch to a record batch.

    It gets the parsed columns. A row it returns with a non-null `_error` (a string) becomes a dead letter with that
    reason. Its payload is the record it came from, if the function returns as many rows as it got, and none of its
    columns in another order; or else the bytes in a column `_raw`, where it returns one; or else the row as JSON. The
    sink finds the rest of the rows in `batch.arrow`, without these two columns.

    Raises `InvalidInput` for what is no function, and, in the block, for what is no record batch.
    """
    if not callable(fn):
        raise InvalidInput(f"columns takes a function of a pyarrow.RecordBatch, not {type(fn).__name__}")

    def process(parsed: ParsedBatch) -> WorkBatch:
        if not isinstance(parsed, ParsedBatch):
            raise InvalidInput("a column function works on parsed blocks: run the engine with parse=True")
        given = parsed.arrow
        returned: object = fn(given)
        if not isinstance(returned, pa.RecordBatch):
            raise InvalidInput(f"a column function must return a pyarrow.RecordBatch, not {type(returned).__name__}")
        kept, letters = set_apart(given, returned, lambda: parsed.records)
        return WorkBatch.of_columns(kept, parsed.commit_tokens, letters)

    return process


def set_apart(
    given: pa.RecordBatch, returned: pa.RecordBatch, records_of: Callable[[], Sequence[Record] | None]
) -> tuple[pa.RecordBatch, list[DeadLetter]]:
    """The rows that are fine, without `_error` and `_raw`, and a dead letter for each of the others.

    `records_of` makes the records that the given rows came from, or None where that is not known.
    """
    has_raw = RAW in returned.schema.names and RAW not in given.schema.names  # one that came in is the user's own
    bare = returned.drop_columns([RAW]) if has_raw else returned
    if ERROR not in returned.schema.names:
        return bare, []
    errors: Any = returned.column(ERROR)
    if not (pa.types.is_string(errors.type) or pa.types.is_large_string(errors.type) or pa.types.is_null(errors.type)):
        raise InvalidInput(f"the column {ERROR!r} must be a string, not {errors.type}")
    bare = bare.drop_columns([ERROR])
    is_fine = errors.is_null()
    rows = [row for row, fine in enumerate(is_fine.to_pylist()) if not fine]
    if not rows:
        return bare, []
    records = records_of() if keeps_rows(given, returned) else None
    raw = returned.column(RAW) if has_raw else None
    letters = list[DeadLetter]()
    for row in rows:
        reason = errors[row].as_py()
        if records is not None:
            letters.append(DeadLetter.of(records[row], reason))
        elif raw is not None and isinstance(payload := raw[row].as_py(), bytes):
            letters.append(DeadLetter(payload, reason))
        else:
            letters.append(DeadLetter.of(WorkBatch.of_columns(bare.slice(row, 1)).records[0], reason))
    return bare.filter(is_fine), letters


def keeps_rows(given: pa.RecordBatch, returned: pa.RecordBatch) -> bool:
    """Whether the rows are as many as before, and no column says that they are in another order."""
    if given.num_rows != returned.num_rows:
        return False
    names = [name for name in given.schema.names if returned.schema.names.count(name) == 1]
    return not any(_is_reordered(given.column(name), returned.column(name)) for name in names)


def _is_reordered(before: pa.Array[Any], after: pa.Array[Any]) -> bool:
    """Whether the same values are there, but not in the same places."""
    if before.type != after.type or before.equals(after):
        return False
    try:
        return bool(_sorted(before).equals(_sorted(after)))
    except pa.ArrowNotImplementedError:  # Arrow cannot sort what is nested
        return sorted(map(repr, before.to_pylist())) == sorted(map(repr, after.to_pylist()))


def _sorted(column: pa.Array[Any]) -> pa.Array[Any]:
    import pyarrow.compute as pc

    return column.take(pc.array_sort_indices(cast("Any", column)))
