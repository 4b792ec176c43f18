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
    """A batch made of objects, and one made of columns: nobody can tell them apart."""
    return KINDS[request.param]


@pytest.fixture
def batch(kind: Any) -> WorkBatch:
    made: WorkBatch = kind(RECORDS)
    return made


def test_its_records_are_those_it_was_made_of(batch: WorkBatch) -> None:
    assert batch.records == RECORDS


def test_its_columns_are_those_of_its_records(batch: WorkBatch) -> None:
    assert batch.arrow.equals(records_to_arrow(RECORDS))


def test_its_length_is_the_number_of_records(batch: WorkBatch) -> None:
    assert len(batch) == 3


def test_its_size_is_that_of_the_payloads(batch: WorkBatch) -> None:
    assert batch.total_bytes == 3


def test_the_size_of_a_piece_is_that_of_its_payloads(batch: WorkBatch) -> None:
    assert batch.piece(1, 3).total_bytes == 2


def test_it_is_true_also_without_records(kind: Any) -> None:
    assert bool(kind([]))


def test_it_is_empty_without_records_though_it_has_tokens(kind: Any) -> None:
    assert (kind([]).is_empty, kind(RECORDS).is_empty) == (True, False)


def test_an_empty_one_has_no_bytes(kind: Any) -> None:
    assert kind([]).total_bytes == 0


def test_map_records_keeps_tokens_and_dead_letters(batch: WorkBatch) -> None:
    mapped = batch.map_records(lambda records: [*records, *records])
    assert (mapped.commit_tokens, mapped.dead_letters) == ((1, 2), (LETTER,))


def test_map_records_puts_what_the_function_makes(batch: WorkBatch) -> None:
    assert values(batch.map_records(reversed).records) == [b"", b"bb", b"a"]


def test_map_records_may_make_none(batch: WorkBatch) -> None:
    assert batch.map_records(lambda records: ()).is_empty


def test_map_records_leaves_the_batch_as_it_was(batch: WorkBatch) -> None:
    def clear(records: list[Record]) -> list[Record]:
        records.clear()
        return records

    batch.map_records(clear)
    assert batch.records == RECORDS


def test_map_records_refuses_what_are_no_records(batch: WorkBatch) -> None:
    with pytest.raises(InvalidInput, match="one is bytes"):
        batch.map_records(lambda records: [record.value for record in records])  # type: ignore[misc]


def test_map_records_keeps_the_count_of_the_filtered() -> None:
    assert WorkBatch(RECORDS, filtered=4).map_records(lambda records: records).filtered == 4


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


def test_one_record_can_be_had(batch: WorkBatch) -> None:
    assert [batch.record(row) for row in range(3)] == RECORDS


def test_it_says_what_it_has(batch: WorkBatch) -> None:
    assert repr(batch) == "WorkBatch(3 records, 2 commit tokens, 1 dead letters)"


@given(sizes=st.lists(st.integers(0, 9), max_size=8), start=st.integers(0, 8), most=st.integers(0, 30))
def test_rows_within_are_as_many_as_fit(sizes: list[int], start: int, most: int) -> None:
    payloads = [b"x" * size for size in sizes]
    start = min(start, len(payloads))
    fitting = max(count for count in range(len(sizes) - start + 1) if sum(sizes[start : start + count]) <= most)
    both = WorkBatch(map(Record, payloads)), WorkBatch(values_to_arrow(payloads))
    assert [batch.rows_within(start, most) for batch in both] == [fitting, fitting]


def test_objects_are_made_of_columns_only_for_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "records_from_arrow", lambda batch: pytest.fail("objects were made"))
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


def test_what_its_maker_does_to_a_list_afterwards_changes_nothing() -> None:
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


# Columns of one's own


OWN = pa.record_batch({"id": [1, 2], "name": ["x", None]})


def test_the_records_of_other_columns_are_rows_as_json() -> None:
    assert [json.loads(record.value) for record in WorkBatch(OWN).records] == OWN.to_pylist()


def test_the_record_columns_of_other_columns_are_rows_as_json() -> None:
    rows = WorkBatch(OWN).record_columns.column("value").to_pylist()
    assert [json.loads(row) for row in rows] == OWN.to_pylist()  # type: ignore[arg-type]


def test_other_columns_stay_as_they_are() -> None:
    assert WorkBatch(OWN).arrow is OWN


def test_of_columns_takes_columns_as_ones_own_though_they_look_like_records() -> None:
    batch = WorkBatch.of_columns(values_to_arrow([b"a"]))
    assert batch.records != [Record(b"a")]


def test_a_piece_of_other_columns_has_other_columns() -> None:
    assert WorkBatch(OWN).piece(1, 2).arrow.to_pylist() == OWN.to_pylist()[1:]


def test_a_column_named_value_of_another_type_is_ones_own() -> None:
    columns = pa.record_batch({"value": ["text"]})
    assert json.loads(WorkBatch(columns).records[0].value) == {"value": "text"}
