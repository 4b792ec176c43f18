"""`Pipeline` in a real session: the ack barrier, dead letters, one call of `process` a record, sinks, summaries.

A run takes seconds, so one fixture runs what several tests look at.
"""

from __future__ import annotations

import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  the usual name

from penstock import Consumer, Record, peek
from penstock.engine import DeadLetter, WorkBatch
from penstock.errors import (
    CorruptData,
    DeadLetterRouteFailed,
    DeadLettersUnrouted,
    EngineError,
    Fenced,
    ProcessFailed,
    SinkFailed,
    StorageError,
)
from penstock.spark import Pipeline
from penstock.spark.pipeline.block_loop import BlockLoop, BlockReport
from penstock.spark.pipeline.run import Summary
from penstock.spark.tables.parquet.table import StagedFiles
from tests.support.pipeline_places import Places, read

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack the module

BAD = Record(b"no JSON", key=b"key", headers=[("h", b"1"), ("h", b"2")])
NEGATIVE = Record(b'{"id": -4}', key=b"four", headers=[("n", b"4")])
LETTER_COLUMNS = (
    "payload binary, key binary, headers array<struct<key:string,value:binary>>, reason string, stage string, "
    "sequence bigint, index int, at timestamp, timestamp timestamp"
)


@pytest.fixture(scope="module")
def new_places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Places]:
    return lambda name: Places(tmp_path_factory.mktemp(name))


def tried(run: Callable[[], Summary]) -> BaseException | None:
    """What a run raises."""
    try:
        run()
    except Exception as error:
        return error
    return None


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """What Penstock logs meanwhile, without a terminal."""
    handler = Kept()
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with redirect_stderr(io.StringIO()):
            yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def checking(calls: Path, *, fails: bool = False) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that sets negative ids apart, and writes each id that it is called for into a file."""

    def check(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids: list[Any] = batch.column("id").to_pylist()
        with calls.open("a") as file:
            file.write("".join(f"{one}\n" for one in ids))
        if fails and 3 in ids:
            raise ValueError("three is too much")
        errors = ["it is negative" if one < 0 else None for one in ids]
        return batch.append_column("_error", pa.array(errors, pa.string()))

    return check


def called(calls: Path) -> Counter[int]:
    return Counter(map(int, calls.read_text().split()))


# Whatever fails: one block that fails in one place after another, until a run does it.


@dataclass
class TwoActions:
    """A sink that looks at a block twice, and fails if it is to."""

    places: Places
    fails: bool = False
    got: list[tuple[str, list[int]]] = field(default_factory=list)
    letters_before: list[int] = field(default_factory=list)

    def __call__(self, df: Any, block_id: str) -> None:
        self.letters_before.append(len(self.places.letters()))
        ids = sorted(row.id for row in df.collect())
        assert df.count() == len(ids)
        self.got.append((block_id, ids))
        if self.fails:
            raise RuntimeError("the disk is full")


@dataclass(frozen=True)
class Attempt:
    """The state after a run."""

    error: BaseException | None
    queued: list[int]
    letters: list[dict[str, Any]]
    calls: Path


@dataclass(frozen=True)
class Trouble:
    """A block, and the runs that tried to do it."""

    places: Places
    location: str
    sink: TwoActions
    attempts: dict[str, Attempt]


@pytest.fixture(scope="module")
def trouble(spark: Any, new_places: Callable[[str], Places]) -> Trouble:
    places = new_places("trouble")
    places.put([b'{"id": 1}', b'{"id": 2}'], [b'{"id": 3}', BAD, NEGATIVE])
    sink = TwoActions(places)
    attempts: dict[str, Attempt] = {}

    def attempt(name: str, *, fails: bool = False, transform: Callable[[Any], Any] = lambda df: df) -> None:
        calls = places.root / f"calls-{name}"
        pipeline = (
            places.pipeline()
            .parse("json", "id bigint")
            .process(checking(calls, fails=fails))
            .transform(transform)
            .dead_letters(places.dead_letters)
            .to(sink)
        )
        error = tried(lambda: pipeline.run(spark, "available_now"))
        attempts[name] = Attempt(error, places.queued(), places.letters(), calls)

    attempt("process", fails=True)

    torn = places.object_of(1)
    data = torn.read_bytes()
    torn.write_bytes(data[: len(data) // 2])
    attempt("batch")
    torn.write_bytes(data)

    in_the_way = places.root / ".dead-letters.staging"
    in_the_way.touch()
    attempt("dead letters")
    in_the_way.unlink()

    attempt("transform", transform=lambda df: df.no_such_method())

    sink.fails = True
    attempt("sink")
    sink.fails = False
    attempt("none")
    return Trouble(places, str(torn.relative_to(places.events)), sink, attempts)


@pytest.mark.parametrize(
    ("name", "kind", "problem", "cause"),
    [
        ("process", ProcessFailed, "ValueError: three is too much", PySparkException),
        ("process", ProcessFailed, "of sequence 1 ({location})", PySparkException),
        ("batch", CorruptData, "of sequence 1 ({location})", PySparkException),
        ("dead letters", DeadLetterRouteFailed, "writing 2 dead letters to ", PySparkException),
        ("transform", ProcessFailed, "a transform failed: ", AttributeError),
        ("sink", SinkFailed, "RuntimeError: the disk is full", RuntimeError),
    ],
)
def test_a_block_that_fails_is_not_acked_and_its_error_says_where_and_what(
    trouble: Trouble, name: str, kind: type[BaseException], problem: str, cause: type[BaseException]
) -> None:
    attempt = trouble.attempts[name]
    assert type(attempt.error) is kind
    assert problem.format(location=trouble.location) in str(attempt.error)
    assert isinstance(attempt.error.__cause__, cause)
    assert attempt.queued == [0, 1]


def test_the_sink_is_called_only_when_everything_before_it_went_well(trouble: Trouble) -> None:
    assert len(trouble.sink.got) == 2  # by the run that it failed itself, and by the last one


@pytest.mark.parametrize("name", ["process", "batch", "dead letters"])
def test_a_failure_before_the_dead_letters_are_written_leaves_none(trouble: Trouble, name: str) -> None:
    assert trouble.attempts[name].letters == []


def test_the_next_run_does_the_block(trouble: Trouble) -> None:
    assert trouble.attempts["none"].error is None
    assert trouble.attempts["none"].queued == []
    assert trouble.sink.got[-1][1] == [1, 2, 3]


def test_a_block_that_comes_again_has_the_same_id_and_the_same_rows(trouble: Trouble) -> None:
    assert trouble.sink.got[0] == trouble.sink.got[1]
    assert isinstance(trouble.sink.got[0][0], str)


def test_dead_letters_are_written_before_the_sink_gets_the_rows(trouble: Trouble) -> None:
    assert trouble.sink.letters_before == [2, 2]


def test_dead_letters_of_a_block_that_comes_again_are_there_once(trouble: Trouble) -> None:
    assert [letter["payload"] for letter in trouble.places.letters()] == [BAD.value, NEGATIVE.value]


def test_process_is_called_once_for_a_record_although_there_are_letters_and_two_actions(trouble: Trouble) -> None:
    for name in ("sink", "none"):
        assert called(trouble.attempts[name].calls) == {1: 1, 2: 1, 3: 1, -4: 1}


def test_a_letter_of_parsing_has_the_place_of_its_record_and_one_of_process_has_none(trouble: Trouble) -> None:
    parsing, processing = trouble.places.letters()
    assert parsing["reason"].startswith("parse error: ")
    assert parsing | {"reason": None, "at": None} == {
        "payload": b"no JSON",
        "key": b"key",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}],
        "reason": None,
        "stage": "parse",
        "sequence": 1,
        "index": 1,
        "at": None,
        "timestamp": None,
    }
    assert processing | {"at": None} == {
        "payload": NEGATIVE.value,
        "key": b"four",
        "headers": [{"key": "n", "value": b"4"}],
        "reason": "it is negative",
        "stage": "process",
        "sequence": None,
        "index": None,
        "at": None,
        "timestamp": None,
    }


def test_the_dead_letter_table_has_these_columns_for_any_reader(trouble: Trouble, spark: Any) -> None:
    letters = Pipeline.read_table(spark, trouble.places.dead_letters)
    assert ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in letters.schema) == LETTER_COLUMNS
    names = [name for name in read(trouble.places.dead_letters).schema.names if name != "block"]
    assert names == letters.columns


# A run that goes well, one with nothing to do, and one with more.


def sorted_out(batch: WorkBatch) -> WorkBatch:
    """Drop what is hidden, and refuse what is refused."""
    refused = [DeadLetter.of(one, "refused") for one in batch.records if one.value == b"refuse"]
    return WorkBatch([one for one in batch.records if one.value not in {b"hide", b"refuse"}], dead_letters=refused)


def with_where(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("where", pa.array(["here"] * batch.num_rows))


@dataclass
class Ticks:
    times: int = 0

    def __call__(self) -> None:
        self.times += 1
        raise OSError("the report cannot be sent")


@dataclass(frozen=True)
class Work:
    """A pipeline with every kind of step, and three runs of it."""

    places: Places
    sizes: list[int]
    summaries: list[Summary]
    queued: list[list[int]]
    logged: list[logging.LogRecord]
    ticks: Ticks
    calls: Path

    def lines(self, logger: str) -> list[str]:
        return [line.getMessage() for line in self.logged if line.name == logger]


@pytest.fixture(scope="module")
def work(spark: Any, new_places: Callable[[str], Places]) -> Work:
    places = new_places("work")
    places.put(
        [b'{"id": 1, "event": "a"}', b'{"id": 2, "event": "b"}', b"hide", Record(b"refuse", key=b"k")],
        [b'{"id": 3, "event": "a"}', b"no JSON"],
    )
    calls, ticks = places.root / "calls", Ticks()
    pipeline = (
        places.pipeline(maxBatchesPerTrigger=1)
        .process(sorted_out)
        .parse("json", "id bigint, event string")
        .process(with_where, schema="id bigint, event string, where string")
        .process(checking(calls))
        .transform(lambda df: df.where("id > 1"))
        .transform(lambda df: df.withColumn("twice", df.id * 2))
        .dead_letters(places.dead_letters)
        .to_parquet(places.table, partition_by=["event"])
        .every(0.01, ticks)
    )
    sizes, queued = places.backlog.sizes(), []
    summaries = []
    with logged() as lines:
        for more in ([], [], [b'{"id": 5, "event": "c"}']):
            if more:
                places.put(more)
            summaries.append(pipeline.run(spark, "available_now"))
            queued.append(places.queued())
    return Work(places, sizes, summaries, queued, lines, ticks, calls)


def test_rows_go_through_all_steps_in_order_into_the_table(work: Work) -> None:
    assert work.places.rows() == [
        {"id": 2, "where": "here", "twice": 4, "event": "b"},
        {"id": 3, "where": "here", "twice": 6, "event": "a"},
        {"id": 5, "where": "here", "twice": 10, "event": "c"},
    ]


def test_partition_by_makes_directories(work: Work) -> None:
    blocks = sorted(work.places.table.glob("block=*"))
    assert [sorted(one.name for one in block.glob("event=*")) for block in blocks] == [
        ["event=b"],
        ["event=a"],
        ["event=c"],
    ]


def test_letters_of_functions_before_parse_and_of_parsing_are_in_one_table(work: Work) -> None:
    letters = [(one["payload"], one["stage"], one["key"]) for one in work.places.letters()]
    assert letters == [(b"no JSON", "parse", None), (b"refuse", "process", b"k")]


def test_process_is_called_once_for_a_record_although_there_are_two_tables(work: Work) -> None:
    assert called(work.calls) == {1: 1, 2: 1, 3: 1, 5: 1}


def test_after_an_available_now_run_nothing_is_left(work: Work) -> None:
    assert work.queued == [[], [], []]


def test_the_summary_counts_what_was_done(work: Work) -> None:
    first = work.summaries[0]
    assert (first.bytes, first.dead_letters, first.blocks) == (sum(work.sizes), 2, 2)
    assert first.rows == 2  # that the sink got, of three that were parsed: a transform drops one
    assert 0.1 < first.seconds < 300


def test_a_run_with_nothing_to_do_does_nothing(work: Work) -> None:
    idle = work.summaries[1]
    assert idle == Summary(seconds=idle.seconds)


def test_what_came_since_is_done_by_the_next_run(work: Work) -> None:
    assert (work.summaries[2].rows, work.summaries[2].blocks) == (1, 1)


def test_without_a_terminal_each_block_is_logged(work: Work) -> None:
    lines = [line for line in work.lines("penstock.spark.pipeline") if line.startswith("block ")]
    assert [line.split(" in ")[0] for line in lines] == [
        f"block 1: 1 rows, {work.sizes[0]} bytes, 1 dead letters",
        f"block 2: 1 rows, {work.sizes[1]} bytes, 1 dead letters",
        f"block 1: 1 rows, {work.summaries[2].bytes} bytes, 0 dead letters",
    ]
    lags = [line.split("; ")[1] for line in lines]
    assert lags[0].startswith(f"lag 1 batches, 2 events, {work.sizes[1] / 1e6:,.1f} MB")
    assert lags[1:] == ["nothing waits", "nothing waits"]


def test_before_the_first_block_it_is_logged_what_the_run_does(work: Work) -> None:
    assert work.lines("penstock.spark.pipeline")[:2] == ["claiming the group", "reading"]


def test_a_function_that_is_called_every_so_often_may_fail_and_is_called_again(work: Work) -> None:
    assert work.ticks.times > 1
    assert len(work.lines("penstock.engine.ticker")) == work.ticks.times


# One pass: rows and dead letters without a transform


@dataclass(frozen=True)
class OnePass:
    """A pipeline with a dead-letter table and no transform, and what each of its blocks reported."""

    places: Places
    reports: list[BlockReport]
    jobs: list[int]
    queued: list[list[int]]
    calls: Path
    summary: Summary


@pytest.fixture(scope="module")
def one_pass(spark: Any, new_places: Callable[[str], Places]) -> OnePass:
    places = new_places("one-pass")
    places.put([b'{"id": 1}', BAD], [b'{"id": 2}', NEGATIVE], [b'{"id": 3}'], [BAD])
    calls = places.root / "calls"
    reports: list[BlockReport] = []
    jobs: list[int] = []
    queued: list[list[int]] = []

    def note(report: BlockReport) -> None:
        reports.append(report)
        queued.append(places.queued())
        context = spark.sparkContext
        group = context.getLocalProperty("spark.jobGroup.id")
        jobs.append(len(context.statusTracker().getJobIdsForGroup(group)))
        raise OSError("the listener is out of order")

    pipeline = (
        places.pipeline(maxBatchesPerTrigger=2)
        .parse("json", "id bigint")
        .process(checking(calls))
        .dead_letters(places.dead_letters)
        .to_parquet(places.table)
        .on_block(note)
    )
    with logged():
        summary = pipeline.run(spark, "available_now")
    return OnePass(places, reports, jobs, queued, calls, summary)


def test_rows_and_dead_letters_of_a_block_are_written_by_one_job(one_pass: OnePass) -> None:
    assert one_pass.jobs == [1, 2]
    assert one_pass.places.rows() == [{"id": 1}, {"id": 2}, {"id": 3}]
    letters = [letter["payload"] for letter in one_pass.places.letters()]
    assert sorted(letters) == sorted([BAD.value, NEGATIVE.value, BAD.value])


def test_in_one_pass_process_is_called_once_for_a_record(one_pass: OnePass) -> None:
    assert called(one_pass.calls) == {1: 1, 2: 1, -4: 1, 3: 1}


def test_a_listener_gets_a_report_of_each_block_and_may_fail(one_pass: OnePass) -> None:
    found = [(one.first, one.end, one.rows, one.dead_letters, one.lag_batches) for one in one_pass.reports]
    assert found == [(0, 2, 2, 2, 2), (2, 4, 1, 1, 0)]
    assert sum(one.bytes for one in one_pass.reports) == one_pass.summary.bytes
    assert one_pass.summary.blocks == 2
    assert one_pass.reports[0].name.endswith(".default-000000000000")


def test_a_listener_is_called_when_its_block_is_acked(one_pass: OnePass) -> None:
    assert one_pass.queued == [[2, 3], []]


def test_letters_that_cannot_be_written_by_a_task_fail_the_run_as_such(spark: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put([b'{"id": 1}', BAD])
    (places.root / ".dead-letters.staging").touch()
    pipeline = places.pipeline().parse("json", "id bigint").dead_letters(places.dead_letters)
    with pytest.raises(DeadLetterRouteFailed, match=r"writing dead letters failed: .*staging"):
        pipeline.to_parquet(places.table).run(spark, "available_now")
    assert (places.queued(), places.rows()) == ([0], [])


# No place for dead letters


@dataclass(frozen=True)
class Unrouted:
    """A block with dead letters, and runs of pipelines that have no place for them."""

    places: Places
    errors: list[BaseException | None]
    queued: list[list[int]]
    sunk: list[str]
    tables: list[str]
    skipped: Summary
    out: list[bytes]


def not_discarded(_staged: StagedFiles) -> None:
    raise StorageError("the disk is gone")


@pytest.fixture(scope="module")
def unrouted(spark: Any, new_places: Callable[[str], Places]) -> Unrouted:
    places = new_places("unrouted")
    places.put([b'{"id": 1}', BAD, b'{"id": "x"}', b'{"id": 2}'])
    sunk: list[str] = []
    parsed = places.pipeline().parse("json", "id bigint")
    errors, queued = [], []
    for pipeline in (parsed.to_parquet(places.table), parsed.to(lambda df, block_id: sunk.append(block_id))):
        errors.append(tried(lambda: pipeline.run(spark, "available_now")))  # noqa: B023  it is called at once
        queued.append(places.queued())
    tables = [str(path) for path in places.root.rglob("*.parquet")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedFiles, "discard", not_discarded)
        errors.append(tried(lambda: parsed.to_parquet(places.root / "other").run(spark, "available_now")))
        queued.append(places.queued())
    skipping = places.pipeline().parse("json", "id bigint", on_error="skip").to_buffer(places.root / "out")
    skipped = skipping.run(spark, "available_now")
    return Unrouted(places, errors, queued, sunk, tables, skipped, [one.value for one in peek(places.root / "out", 10)])


@pytest.mark.parametrize("sink", [0, 1, 2], ids=["table", "function", "table that cannot discard"])
def test_a_dead_letter_without_a_place_fails_the_run_and_names_the_first_reasons(unrouted: Unrouted, sink: int) -> None:
    error = unrouted.errors[sink]
    assert isinstance(error, DeadLettersUnrouted)
    assert str(error).startswith("2 dead letters, and no place for them; the first reasons: parse error: ")
    assert str(error).count("parse error: ") == 2


def test_a_block_with_such_a_letter_is_neither_acked_nor_written(unrouted: Unrouted) -> None:
    assert unrouted.queued == [[0], [0], [0]]
    assert (unrouted.tables, unrouted.sunk) == ([], [])
    assert not unrouted.places.table.exists()


def test_what_is_skipped_is_neither_a_row_nor_a_dead_letter_and_the_rest_is_written(unrouted: Unrouted) -> None:
    assert unrouted.out == [b'{"id":1}', b'{"id":2}']
    assert (unrouted.skipped.rows, unrouted.skipped.dead_letters, unrouted.skipped.blocks) == (2, 0, 1)


# A batch that is set aside, and transforms of a whole block


@dataclass(frozen=True)
class SetAside:
    places: Places
    data: bytes
    summary: Summary
    got: list[Any]


@pytest.fixture(scope="module")
def set_aside(spark: Any, new_places: Callable[[str], Places]) -> SetAside:
    places = new_places("set-aside")
    places.put([b'{"id": 1, "event": "a"}', b'{"id": 2, "event": "a"}'], [b"lost"], [b'{"id": 3, "event": "b"}'])
    torn = places.object_of(1)
    data = torn.read_bytes()[:-3]
    torn.write_bytes(data)
    got: list[Any] = []

    def joined(df: Any) -> Any:
        return df.alias("one").join(df.alias("other"), F.col("one.event") == F.col("other.event")).select("one.event")

    pipeline = (
        places.pipeline(onCorruptBatch="dlq")
        .parse("json", "id bigint, event string")
        .transform(joined)
        .transform(lambda df: df.groupBy("event").count())
        .dead_letters(places.dead_letters)
        .to(lambda df, _: got.extend((row["event"], row["count"]) for row in df.collect()))
    )
    return SetAside(places, data, pipeline.run(spark, "available_now"), got)


def test_a_batch_that_cannot_be_read_is_one_letter_of_the_stage_fetch(set_aside: SetAside) -> None:
    [letter] = set_aside.places.letters()
    assert letter["reason"].startswith("the data of sequence 1 (")
    assert letter | {"reason": None, "at": None} == {
        "payload": set_aside.data,
        "key": None,
        "headers": None,
        "reason": None,
        "stage": "fetch",
        "sequence": 1,
        "index": None,
        "at": None,
        "timestamp": None,
    }


def test_the_batches_around_it_are_done_and_all_are_acked(set_aside: SetAside) -> None:
    assert (set_aside.summary.dead_letters, set_aside.places.queued()) == (1, [])


def test_a_transform_may_join_a_block_with_itself_and_aggregate_it(set_aside: SetAside) -> None:
    assert sorted(set_aside.got) == [("a", 4), ("b", 1)]


# Errors that are not of a block


@dataclass(frozen=True)
class Ended:
    places: Places
    fenced: BaseException | None
    queued: list[int]


@pytest.fixture(scope="module")
def ended(spark: Any, new_places: Callable[[str], Places]) -> Ended:
    places = new_places("ended")
    places.put([b"1"])

    def take_over(df: Any, block_id: str) -> None:
        Consumer(places.events).close()

    pipeline = places.pipeline().to(take_over)
    fenced = tried(lambda: pipeline.run(spark, "available_now"))
    return Ended(places, fenced, places.queued())


def test_a_consumer_that_was_opened_meanwhile_fences_the_pipeline(ended: Ended) -> None:
    assert type(ended.fenced) is Fenced
    assert "its epoch is 2, and this one's 1" in str(ended.fenced)


def test_a_fenced_pipeline_acks_nothing_more(ended: Ended) -> None:
    assert ended.queued == [0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PySparkException("the executors are gone"), "Spark failed: PySparkException: the executors are gone"),
        (Py4JNetworkError("no answer"), "Spark is gone: Py4JNetworkError: "),
        (ConnectionRefusedError("nobody listens"), "Spark is gone: ConnectionRefusedError: nobody listens"),
    ],
)
def test_a_failure_of_sparks_own_is_an_engine_error_with_its_text(
    error: Exception, text: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_loop: BlockLoop) -> None:
        raise error

    monkeypatch.setattr(BlockLoop, "run", fail)
    with pytest.raises(EngineError) as caught:
        Places(tmp_path).pipeline().to(lambda _rows, _block: None).run(spark, "available_now")
    assert type(caught.value) is EngineError
    assert str(caught.value).startswith(text)
    assert caught.value.__cause__ is error


def test_a_checkpoint_that_cannot_be_made_is_an_error_of_ours(spark: Any, new_places: Callable[[str], Places]) -> None:
    places = new_places("no-checkpoint")
    places.put([b"1"])
    places.checkpoint.touch()
    with pytest.raises(StorageError, match=r"could not write .*/checkpoint/"):
        places.pipeline().to(lambda df, block_id: None).run(spark, "available_now")


def test_a_buffer_where_nothing_was_produced_yet_is_one_with_nothing_to_do(
    spark: Any, new_places: Callable[[str], Places]
) -> None:
    got: list[str] = []
    pipeline = new_places("empty").pipeline().to(lambda df, block_id: got.append(block_id))
    idle = pipeline.run(spark, "available_now")
    assert (idle, got) == (Summary(seconds=idle.seconds), [])
