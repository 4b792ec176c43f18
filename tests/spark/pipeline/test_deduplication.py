"""`Pipeline.deduplicate` in a real session: each key once within a time, over blocks, runs, failures and two drivers.

The times are those at which events came into the buffer: the tests append with a clock of their own.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock import ProducerConfig
from penstock.buffer.producer.block_appender import BlockAppender
from penstock.errors import EngineError, Fenced, InvalidInput, SinkFailed
from penstock.records import records_to_arrow
from penstock.spark import Pipeline
from penstock.spark.pipeline.deduplication import Deduplicate, Deduplication
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.parquet.table import StagedFiles
from tests.support.pipeline_places import Places

START = time.time() - 2 * 86400.0
HOUR = 3600.0
SCHEMA = "n bigint, id string, part int, at timestamp"

pytestmark = pytest.mark.usefixtures("nothing_is_synced")


@dataclass(frozen=True)
class Events:
    """Events with numbers of their own, appended at times of a test's own; and a pipeline that deduplicates them."""

    places: Places
    spark: Any

    def put(self, at: float, *batches: Iterable[object]) -> None:
        """Append batches at a time: ids, pairs of id and part, dictionaries, or bytes as they are."""
        appender = BlockAppender(self.places.backlog.store, ProducerConfig(format="arrow"), clock=lambda: START + at)
        payloads = [[_payload(event) for event in batch] for batch in batches]
        appender.append([appender.write(records_to_arrow(batch)) for batch in payloads])

    def pipeline(self, keys: Sequence[str] = ("id",), within: str = "1 hour", **options: Any) -> Pipeline:
        given = {"maxBatchesPerTrigger": 1, "selfRegulation": "off"} | options
        pipeline = Pipeline(self.places.events, self.places.checkpoint, options=given).parse("json", SCHEMA)
        return pipeline.deduplicate(keys, within=within)

    def run(self, pipeline: Pipeline | None = None, **options: Any) -> int:
        """Run a pipeline into the table, and return how many rows it wrote."""
        pipeline = (pipeline or self.pipeline(**options)).to_parquet(self.places.table)
        return pipeline.run(self.spark, "available_now").rows

    def numbers(self) -> list[int]:
        """The numbers of the events that are in the table."""
        return sorted(row["n"] for row in self.places.rows())

    def keys(self) -> int:
        """How many blocks of keys there are."""
        return len(list((self.places.checkpoint / "penstock" / "keys").glob("block=*")))


def _payload(event: object) -> bytes:
    if isinstance(event, bytes):
        return event
    return json.dumps(event).encode()


@pytest.fixture
def events(spark: Any, tmp_path: Path) -> Events:
    return Events(Places(tmp_path), spark)


def numbered(ids: Iterable[str | None], first: int = 0) -> list[dict[str, Any]]:
    return [{"n": number, "id": one} for number, one in enumerate(ids, first)]


@pytest.mark.slow
def test_of_events_with_one_key_the_first_is_kept_in_a_block_across_blocks_and_across_runs(events: Events) -> None:
    events.put(0, numbered("abab"), numbered("bcac", 4), numbered("d", 8))
    assert events.run() == 4
    assert events.numbers() == [0, 1, 5, 8]
    events.put(60, numbered("abcde", 9))
    assert events.run() == 1
    assert events.numbers() == [0, 1, 5, 8, 13]
    assert events.places.queued() == []


@pytest.mark.slow
def test_a_block_of_nothing_but_duplicates_is_done_and_acked(events: Events) -> None:
    events.put(0, numbered("a"), numbered("aa", 1), numbered("b", 3))
    assert events.run() == 2
    assert events.numbers() == [0, 3]
    assert events.places.queued() == []


@pytest.mark.slow
def test_a_key_counts_for_the_time_after_the_event_that_was_kept(events: Events) -> None:
    for number, at in enumerate([0, 0.9 * HOUR, 1.1 * HOUR, 2.05 * HOUR, 2.2 * HOUR]):
        events.put(at, numbered("a", number))
    events.run()
    assert events.numbers() == [0, 2, 4]


@pytest.mark.slow
def test_a_key_counts_for_the_time_within_a_large_block_too(events: Events) -> None:
    for number in range(60):
        events.put(number * 0.3 * HOUR, numbered("a", number))
    events.run(maxBatchesPerTrigger=100)
    assert events.numbers() == list(range(0, 60, 4))


@pytest.mark.slow
def test_rows_with_a_null_among_their_keys_are_kept(events: Events) -> None:
    rows: list[dict[str, Any]] = [
        {"n": 0, "id": None, "part": 1},
        {"n": 1, "id": None, "part": 1},
        {"n": 2, "id": "a"},
        {"n": 3, "id": "a"},
    ]
    events.put(0, rows, [{**row, "n": row["n"] + 4} for row in rows])
    events.run(keys=("id", "part"))
    assert events.numbers() == list(range(8))


@pytest.mark.slow
def test_several_columns_are_one_key(events: Events) -> None:
    rows = [("a", 1), ("a", 2), ("a", 1), ("b", 1), ("a1", 1), ("a", 11)]
    events.put(0, [{"n": n, "id": one, "part": part} for n, (one, part) in enumerate(rows)])
    events.run(keys=("id", "part"))
    assert events.numbers() == [0, 1, 3, 4, 5]


@pytest.mark.slow
def test_times_that_differ_by_a_microsecond_are_two_keys_in_any_time_zone(events: Events) -> None:
    times = ["2026-01-31T12:00:00.000001Z", "2026-01-31T12:00:00.000002Z", "2026-01-31T12:00:00.000001Z"]
    rows: list[dict[str, Any]] = [{"n": number, "id": "a", "at": at} for number, at in enumerate(times)]
    events.put(0, rows)
    events.run(keys=("at",))
    assert events.numbers() == [0, 1]
    events.put(1, [{**row, "n": row["n"] + 3} for row in rows])
    zone = events.spark.conf.get("spark.sql.session.timeZone")
    events.spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        events.run(keys=("at",))
    finally:
        events.spark.conf.set("spark.sql.session.timeZone", zone)
    assert events.numbers() == [0, 1]


@pytest.mark.slow
def test_rows_stay_in_the_order_of_their_events(events: Events) -> None:
    ids = [str(number) for number in random.Random(5).choices(range(40), k=60)]
    first = {one: number for number, one in reversed(list(enumerate(ids)))}
    events.put(0, numbered(ids[:30]), numbered(ids[30:], 30))
    got: list[int] = []

    def sink(rows: Any, _block: str) -> None:
        got.extend(row["n"] for row in rows.collect())

    events.pipeline(maxBatchesPerTrigger=10).to(sink).run(events.spark, "available_now")
    assert got == sorted(first.values())


def test_a_key_that_is_no_column_is_an_error_before_anything_is_read(events: Events) -> None:
    events.put(0, [b"no JSON"])
    with pytest.raises(InvalidInput, match=r"deduplicate names the column 'user', and the rows have n, id, part, at"):
        events.run(keys=("id", "user"))
    assert events.places.queued() == [0]


def test_a_column_that_deduplicate_needs_itself_is_refused(events: Events) -> None:
    pipeline = Pipeline(events.places.events, events.places.checkpoint).parse("json", "id bigint, _penstock_seen int")
    with pytest.raises(InvalidInput, match="_penstock_seen"):
        events.run(pipeline.deduplicate(["id"]))


@pytest.mark.parametrize(
    ("keys", "within", "problem"),
    [
        ([], "1 hour", "needs the columns"),
        ("id", "1 hour", "keys must be a list"),
        (["id"], "an hour", "within must be a time"),
        (["id"], "0 seconds", "within must be a time"),
        (["id"], "99999999 days", "within must be at most"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(keys: Any, within: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Pipeline(tmp_path / "events", tmp_path / "checkpoint").deduplicate(keys, within=within)


def test_deduplicate_is_said_once_before_transform_and_with_a_checkpoint(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "events", tmp_path / "checkpoint")
    with pytest.raises(InvalidInput, match="there already"):
        pipeline.deduplicate(["id"]).deduplicate(["id"])
    with pytest.raises(InvalidInput, match="before transform"):
        pipeline.transform(lambda rows: rows).deduplicate(["id"])
    with pytest.raises(InvalidInput, match="beside the checkpoint"):
        Pipeline(tmp_path / "events").deduplicate(["id"])


@pytest.mark.slow
def test_a_long_time_is_no_trouble(events: Events) -> None:
    events.put(0, numbered("a"), numbered("a", 1))
    events.run(within="36500 days")
    assert events.numbers() == [0]


@pytest.mark.slow
def test_keys_that_cannot_count_any_more_are_removed_but_for_the_last_block(events: Events) -> None:
    events.put(0, numbered("a"), numbered("b", 1), numbered("c", 2))
    events.run()
    assert events.keys() == 3
    keys = Deduplication(events.spark, str(events.places.checkpoint), Deduplicate(("id",), HOUR))
    [query] = {path.name.removeprefix("block=").rpartition("-")[0] for path in _key_blocks(events)}
    assert keys.table.position(query) is not None
    keys.forget_before(time.time() + HOUR)
    assert events.keys() == 3  # there is a margin for clocks that differ
    keys.forget_before(time.time() + 2 * HOUR)
    assert events.keys() == 1
    position = keys.table.position(query)
    assert position is not None
    assert position.end == 3
    events.put(0.1, numbered("c", 3))
    assert events.run() == 0


def _key_blocks(events: Events) -> list[Path]:
    return list((events.places.checkpoint / "penstock" / "keys").glob("block=*"))


@pytest.mark.slow
def test_keys_stay_as_long_as_events_wait_that_they_count_for(events: Events) -> None:
    # All came in two days ago, within a second: the driver's own clock says that the keys are old at once.
    events.put(0, *(numbered("a", number) for number in range(4)))
    events.run(within="1 second")
    assert events.numbers() == [0]


@pytest.mark.slow
def test_keys_of_another_group_do_not_count(events: Events) -> None:
    events.put(0, numbered("a"), numbered("b", 1), numbered("ab", 2))
    events.run()
    events.put(1, numbered("ca", 4))
    other = Places(events.places.root)
    pipeline = Pipeline(other.events, other.checkpoint, options={"group": "other", "maxBatchesPerTrigger": 1})
    got: list[int] = []

    def sink(rows: Any, _block: str) -> None:
        got.extend(row["n"] for row in rows.collect())

    # It begins where the first group has acked all before: the keys of that one are none of its own.
    pipeline.parse("json", SCHEMA).deduplicate(["id"]).to(sink).run(events.spark, "available_now")
    assert got == [4, 5]


class Failing(Exception):
    """What a test raises in place of a kill."""


def fails_once_at(monkeypatch: pytest.MonkeyPatch, place: str, *, before: bool) -> Callable[[], int]:
    """Have the first commit to a place raise, before it is done or after; return how often that was."""
    failed: list[str] = []
    commit = StagedFiles.commit

    def failing(staged: StagedFiles) -> bool:
        is_due = not failed and staged._table.url.rstrip("/").endswith(place)
        if is_due and before:
            failed.append(place)
            raise Failing
        done = commit(staged)
        if is_due:
            failed.append(place)
            raise Failing
        return done

    monkeypatch.setattr(StagedFiles, "commit", failing)
    return lambda: len(failed)


@pytest.mark.parametrize(
    ("place", "before"),
    [
        ("keys", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("dead-letters", False), ("keys", True), ("table", True), ("table", False)]
        ),
    ],
)
def test_a_block_that_failed_at_any_commit_comes_again_with_the_same_rows(
    events: Events, monkeypatch: pytest.MonkeyPatch, place: str, *, before: bool
) -> None:
    events.put(0, [*numbered("aab"), b"no JSON"], numbered("bca", 3))
    count = fails_once_at(monkeypatch, place, before=before)

    def run(per_block: int) -> None:
        pipeline = events.pipeline(maxBatchesPerTrigger=per_block).dead_letters(events.places.dead_letters)
        pipeline.to_parquet(events.places.table).run(events.spark, "available_now")

    with pytest.raises(EngineError):
        run(1)
    assert count() == 1
    assert events.places.queued() == [0, 1]
    run(2)  # other borders, but for the block that has begun
    assert events.numbers() == [0, 2, 4]
    assert [letter["payload"] for letter in events.places.letters()] == [b"no JSON"]
    assert events.places.queued() == []


@pytest.mark.slow
def test_a_function_that_failed_gets_the_same_rows_again(events: Events) -> None:
    events.put(0, numbered("aab"), numbered("bca", 3))
    got: list[list[int]] = []

    def sink(rows: Any, _block: str) -> None:
        got.append(sorted(row["n"] for row in rows.collect()))
        if len(got) == 1:
            raise Failing

    with pytest.raises(SinkFailed):
        events.pipeline().to(sink).run(events.spark, "available_now")
    events.pipeline().to(sink).run(events.spark, "available_now")
    assert got == [[0, 2], [0, 2], [4]]


def test_of_two_drivers_with_other_borders_one_writes_each_key(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first driver has a block of two batches in hand; a second one does all in blocks of one meanwhile."""
    events.put(0, numbered("aab"), numbered("bca", 3))
    apply = Deduplication.apply
    met: list[BlockId] = []

    def applied(keys: Deduplication, rows: Any, block: BlockId) -> Any:
        found = apply(keys, rows, block)
        if not met:
            met.append(block)
            events.run()
        return found

    monkeypatch.setattr(Deduplication, "apply", applied)
    with pytest.raises(Fenced):
        events.run(maxBatchesPerTrigger=2)
    assert [(block.first, block.end) for block in met] == [(0, 2)]
    assert events.numbers() == [0, 2, 4]
    assert events.places.queued() == []


@pytest.mark.slow
def test_a_driver_that_has_committed_keys_and_sleeps_leaves_the_block_to_the_next(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.put(0, numbered("aab"), numbered("bca", 3))
    commit = StagedFiles.commit
    met: list[str] = []

    def committed(staged: StagedFiles) -> bool:
        done = commit(staged)
        if not met and staged._table.url.rstrip("/").endswith("keys"):
            met.append("keys")
            events.run()
        return done

    monkeypatch.setattr(StagedFiles, "commit", committed)
    with pytest.raises(Fenced):
        events.run(maxBatchesPerTrigger=2)
    assert met == ["keys"]
    assert events.numbers() == [0, 2, 4]
    assert len(_key_blocks(events)) == 1  # of the first driver's block of two, which the second one did exactly


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_in_the_table_is_what_a_set_of_keys_lets_through(events: Events, seed: int) -> None:
    chance = random.Random(seed)
    last: dict[str, float] = {}
    wanted: list[int] = []
    number, at = 0, 0.0
    for _ in range(3):
        for _ in range(chance.randint(1, 8)):
            at += chance.choice([0, 60, 0.4 * HOUR, 1.5 * HOUR])
            ids = [chance.choice(["a", "b", "c", "d", None]) for _ in range(chance.randint(1, 6))]
            events.put(at, numbered(ids, number))
            for one in ids:
                if one is None or one not in last or at > last[one] + HOUR:
                    wanted.append(number)
                    if one is not None:
                        last[one] = at
                number += 1
        events.run(maxBatchesPerTrigger=chance.randint(1, 5))
        assert events.numbers() == wanted


def test_keys_are_of_a_block_and_of_a_query(events: Events) -> None:
    events.put(0, numbered("ab"))
    events.run()
    [block] = _key_blocks(events)
    table = ds.dataset(block, format="parquet").to_table().sort_by("key")
    assert table.num_rows == 2
    assert table.column("end").to_pylist() == [1, 1]
    assert table.column("seen").to_pylist() == [datetime.fromtimestamp(int(START * 1000) / 1000, UTC)] * 2
