"""`WorkBatch`: records as a list or in columns, and the tokens that stay."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.engine import DeadLetter, WorkBatch
from penstock.engine import work_batch as module
from penstock.errors import InvalidInput
from penstock.records import records_to_arrow, values_to_arrow
from tests.engine.doubles import values

RECORDS = [Record(b"a", key=b"k"), Record(b"bb", headers=[("h", b"1")]), Record(b"", timestamp_ms=5)]
LETTER = DeadLetter(b"x", "bad")
KINDS = {"list": lambda records: WorkBatch(records, (1, 2), [LETTER]),
         "arrow": lambda records: WorkBatch(records_to_arrow(records), (1, 2), [LETTER])}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """A batch of objects, and one of columns: they behave alike."""
    return KINDS[request.param]


@pytest.fixture
def batch(kind: Any) -> WorkBatch:
    batch: WorkBatch = kind(RECORDS)
    return batch


def test_it_has_its_records_their_columns_number_and_size(batch: WorkBatch) -> None:
    assert batch.records == [batch.record(row) for row in range(3)] == RECORDS
    assert batch.arrow.equals(records_to_arrow(RECORDS))
    assert (len(batch), batch.total_bytes, batch.is_empty) == (3, 3, False)


def test_without_records_it_is_empty_and_true_for_it_has_tokens(kind: Any) -> None:
    batch = kind([])
    assert (batch.is_empty, batch.total_bytes, bool(batch), batch.commit_tokens) == (True, 0, True, (1, 2))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_map_records_replaces_the_records_and_keeps_the_rest(kept: int) -> None:
    batch = WorkBatch(RECORDS, (1, 2), [LETTER], filtered=4)
    mapped = batch.map_records(lambda records: list(reversed(records))[:kept])
    assert values(mapped.records) == [b"", b"bb", b"a"][:kept]
    assert (mapped.commit_tokens, mapped.dead_letters, mapped.filtered) == ((1, 2), (LETTER,), 4)


def test_map_records_leaves_the_batch_as_it_was(batch: WorkBatch) -> None:
    def clear(records: list[Record]) -> list[Record]:
        records.clear()
        return records

    batch.map_records(clear)
    assert batch.records == RECORDS


def test_map_records_refuses_what_are_no_records(batch: WorkBatch) -> None:
    with pytest.raises(InvalidInput, match="one is bytes"):
        batch.map_records(lambda records: [record.value for record in records])  # type: ignore[misc]


def test_with_tokens_changes_the_tokens_alone(batch: WorkBatch) -> None:
    other = batch.with_tokens((9,))
    assert (other.commit_tokens, other.dead_letters, other.records, batch.commit_tokens) == (
        (9,),
        (LETTER,),
        RECORDS,
        (1, 2),
    )


def test_a_piece_has_neither_tokens_nor_dead_letters(batch: WorkBatch) -> None:
    piece = batch.piece(0, 1)
    assert (piece.records, piece.commit_tokens, piece.dead_letters) == (RECORDS[:1], (), ())
    assert batch.piece(1, 3).total_bytes == 2


def test_its_repr_counts_what_it_has(batch: WorkBatch) -> None:
    assert repr(batch) == "WorkBatch(3 records, 2 commit tokens, 1 dead letters)"


@given(sizes=st.lists(st.integers(0, 9), max_size=8), start=st.integers(0, 8), most=st.integers(0, 30))
def test_rows_within_are_as_many_as_fit(sizes: list[int], start: int, most: int) -> None:
    payloads = [b"x" * size for size in sizes]
    start = min(start, len(payloads))
    fitting = max(count for count in range(len(sizes) - start + 1) if sum(sizes[start : start + count]) <= most)
    both = WorkBatch(map(Record, payloads)), WorkBatch(values_to_arrow(payloads))
    assert [batch.rows_within(start, most) for batch in both] == [fitting, fitting]


def test_no_objects_are_created_of_columns_until_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "records_from_arrow", lambda batch: pytest.fail("objects were created"))
    batch = WorkBatch(values_to_arrow([b"a", b"b"]), (1,))
    piece = batch.piece(0, batch.rows_within(0, 1)).with_tokens((1,))
    assert (len(piece), piece.total_bytes, piece.is_empty, batch.arrow.num_rows) == (1, 1, False, 2)


def test_columns_are_not_copied() -> None:
    columns = values_to_arrow([b"a", b"b"])
    assert WorkBatch(columns).arrow is columns


@pytest.mark.parametrize("records", [iter(RECORDS), tuple(RECORDS), (record for record in RECORDS)])
def test_it_takes_any_iterable_of_records(records: Any) -> None:
    assert WorkBatch(records).records == RECORDS


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), range(1, 3), iter([1, 2])])
def test_it_takes_any_iterable_of_tokens(tokens: Any) -> None:
    assert WorkBatch([], tokens).commit_tokens == (1, 2)


def test_a_change_of_the_callers_list_afterwards_changes_nothing() -> None:
    records = list(RECORDS)
    batch = WorkBatch(records)
    records.clear()
    assert batch.records == RECORDS


@pytest.mark.parametrize("records", [None, 3, b"abc", "abc", Record(b"a"), {"a": 1}, [b"a"], [Record(b"a"), None]])
def test_what_are_no_records_is_refused(records: Any) -> None:
    with pytest.raises(InvalidInput, match="records must be"):
        WorkBatch(records)


@pytest.mark.parametrize("tokens", [None, 3, "12", b"12"])
def test_what_are_no_tokens_is_refused(tokens: Any) -> None:
    with pytest.raises(InvalidInput, match="commit_tokens must be"):
        WorkBatch([], tokens)


@pytest.mark.parametrize("letters", [None, LETTER, [Record(b"a")], ["bad"]])
def test_what_are_no_dead_letters_is_refused(letters: Any) -> None:
    with pytest.raises(InvalidInput, match="dead_letters must be"):
        WorkBatch([], (), letters)


def test_record_columns_with_a_null_value_are_refused() -> None:
    columns = pa.record_batch({"value": pa.array([b"a", None], pa.binary())})
    with pytest.raises(InvalidInput, match="holds a null"):
        WorkBatch(columns)


# The user's own columns


OWN = pa.record_batch({"id": [1, 2], "name": ["x", None]})


def test_the_records_of_other_columns_are_rows_as_json() -> None:
    batch = WorkBatch(OWN)
    assert [json.loads(record.value) for record in batch.records] == OWN.to_pylist()
    assert batch.record_columns.equals(records_to_arrow(batch.records))


def test_other_columns_stay_as_they_are() -> None:
    assert WorkBatch(OWN).arrow is OWN


def test_of_columns_are_the_users_own_even_if_they_look_like_records() -> None:
    batch = WorkBatch.of_columns(values_to_arrow([b"a"]))
    assert batch.records != [Record(b"a")]


def test_a_piece_of_other_columns_has_other_columns() -> None:
    assert WorkBatch(OWN).piece(1, 2).arrow.to_pylist() == OWN.to_pylist()[1:]


def test_a_column_named_value_of_another_type_is_the_users_own() -> None:
    columns = pa.record_batch({"value": ["text"]})
    assert json.loads(WorkBatch(columns).records[0].value) == {"value": "text"}
