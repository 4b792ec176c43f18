"""Building a `Pipeline`: what each call refuses, and that it leaves the pipeline before it as it was."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from penstock.errors import InvalidInput
from penstock.spark import Pipeline, register
from penstock.spark.pipeline.triggers import Trigger
from tests.support.spark_session import needs_spark

Build = Callable[[Pipeline], object]


def begun() -> Pipeline:
    return Pipeline("/data/events", "/data/checkpoint")


def same(anything: Any) -> Any:
    return anything


def refused(build: Build, pipeline: Pipeline | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        build(pipeline or begun())
    return str(caught.value)


# Places


@pytest.mark.parametrize("where", ["", None, 7, b"", ["a"]])
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("source", lambda where: Pipeline(where, "/data/checkpoint")),
        ("dead_letters", lambda where: begun().dead_letters(where)),
        ("to_parquet", lambda where: begun().to_parquet(where)),
        ("to_buffer", lambda where: begun().to_buffer(where)),
        ("url", lambda where: Pipeline.read_table(None, where)),  # type: ignore[arg-type]  # no session is needed
    ],
)
def test_a_place_is_a_path_or_a_url(name: str, build: Callable[[object], object], where: object) -> None:
    with pytest.raises(InvalidInput, match=f"{name} must be a path or a URL, not "):
        build(where)


@pytest.mark.parametrize("where", ["", 7, b"", ["a"]])
def test_a_checkpoint_is_a_path_or_a_url_or_left_out(where: Any) -> None:
    with pytest.raises(InvalidInput, match="checkpoint must be a path or a URL, not "):
        Pipeline("/data/events", where)
    Pipeline("/data/events").to_parquet("/data/table")


@pytest.mark.parametrize("where", ["memory:", "memory://here"])
def test_a_store_in_memory_is_no_place_for_several_processes(where: str) -> None:
    for build in (lambda _: Pipeline(where, "/data/checkpoint"), lambda pipeline: pipeline.to_parquet(where)):
        assert f"cannot be {where!r}: Spark works in several processes" in refused(build)


def test_a_path_and_its_text_are_the_same_place() -> None:
    assert repr(Pipeline(Path("/data/events"), Path("/data/checkpoint"))) == repr(begun())


def test_a_relative_path_is_of_the_directory_it_was_said_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repr(Pipeline("events", "checkpoint")) == repr(Pipeline(tmp_path / "events", tmp_path / "checkpoint"))


def test_a_pipeline_says_where_it_reads_and_no_option() -> None:
    shown = repr(Pipeline("s3://bucket/events", "/data/checkpoint", options={"secret_access_key": "a-secret"}))
    assert shown == "Pipeline(source='s3://bucket/events', checkpoint='file:///data/checkpoint')"


# Options


@pytest.mark.parametrize("name", ["path", "format", "columns", "onError"])
def test_an_option_that_a_pipeline_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"options cannot have '{name}'"):
        Pipeline("/data/events", "/data/checkpoint", options={name: "x"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger must be a number of bytes"),
        ({"maxBatchesPerTrigger": 0}, "maxBatchesPerTrigger"),
        ({"onCorruptBatch": "ignore"}, "onCorruptBatch must be one of fail, dlq, not 'ignore'"),
        ({"pollInterval": -1}, "pollInterval"),
    ],
)
def test_a_wrong_read_option_is_refused_at_once(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Pipeline("/data/events", "/data/checkpoint", options=options)


@pytest.mark.parametrize(
    "build",
    [
        lambda options: Pipeline("/data/events", "/data/checkpoint", options=options),
        lambda options: begun().dead_letters("/data/dead", options=options),
        lambda options: begun().to_parquet("/data/table", options=options),
        lambda options: begun().to_buffer("/data/out", options=options),
    ],
)
def test_options_are_a_dict(build: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput, match="options must be a dict, not list"):
        build([("region", "here")])
    with pytest.raises(InvalidInput, match="options must have text for names, not 1"):
        build({1: "here"})


# Steps


@pytest.mark.parametrize(
    ("format", "schema", "on_error", "problem"),
    [
        (
            "xml",
            "id bigint",
            "dlq",
            "format must be one of json, msgpack, auto, avro, protobuf, csv, json-values, not 'xml'",
        ),
        ("json", "id bigint", "drop", "on_error must be one of dlq, skip, fail, not 'drop'"),
        ("json", " ", "dlq", "schema must be columns such as 'id bigint, event string', not ' '"),
        ("json", None, "dlq", "schema must be columns such as .*, not None"),
        ("json", ["id"], "dlq", "schema must be columns such as .*, not \\['id'\\]"),
    ],
)
def test_parse_refuses(format: str, schema: Any, on_error: str, problem: str) -> None:  # noqa: A002  as it is called there
    with pytest.raises(InvalidInput, match=problem):
        begun().parse(format, schema, on_error)


def test_parse_takes_a_schema_of_sparks() -> None:
    begun().parse("json", StructType([StructField("id", LongType())]))


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda it: it.parse("json", "id bigint").parse("json", "id bigint"), "a pipeline parses once"),
        (lambda it: it.transform(same).parse("json", "id bigint"), "parse comes before transform"),
        (lambda it: it.transform(same).process(same), "process comes before transform"),
        (lambda it: it.process("module:function"), "process takes a function, not str"),
        (lambda it: it.process(same, schema="id bigint"), "process takes a schema after parse only"),
        (lambda it: it.parse("json", "id bigint").process(same, schema=""), "schema must be columns such as"),
        (lambda it: it.transform("where id > 0"), "transform takes a function of a DataFrame, not str"),
        (lambda it: it.to("a place"), "to takes a function of a DataFrame and a block id, not str"),
        (lambda it: it.every(0, same), "seconds"),
        (lambda it: it.every(float("nan"), same), "seconds"),
        (lambda it: it.every(1, "report"), "every takes a function, not str"),
        (lambda it: it.on_block("report"), "on_block takes a function of a BlockReport, not str"),
        (lambda it: it.dead_letters("/a").dead_letters("/b"), "a pipeline has one table for them"),
        (
            lambda it: it.to_parquet("/data/table").to(same),
            r"a pipeline has one sink, and this one has to_parquet\('/data/table'\) already",
        ),
        (lambda it: it.to(same).to_buffer("/data/out"), r"one sink, and this one has to\(same\) already"),
        (lambda it: it.to_parquet("/data/table", partition_by="event"), "partition_by must be a list of column names"),
        (lambda it: it.to_parquet("/data/table", partition_by=[1]), "partition_by must be a list of column names"),
        (lambda it: it.to_parquet("/data/table", partition_by=1), "partition_by must be a list of column names"),
        (lambda it: it.to_buffer("/data/events"), "to_buffer is the pipeline's own source, /data/events"),
        (lambda it: it.to_buffer("/data/x/../events"), "to_buffer is the pipeline's own source"),
        (lambda it: it.to(same).run("local[*]"), "run takes a SparkSession, not str"),
        pytest.param(
            register,
            "register takes a SparkSession, not Pipeline",
            marks=needs_spark(4, 0, "it has no data sources in Python"),
        ),
    ],
)
def test_a_step_that_cannot_be_right_is_refused_by_its_call(build: Build, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        build(begun())


@pytest.mark.parametrize("value", [5, b"x", ["a"], True, 0, {}])
@pytest.mark.parametrize("name", ["order_by", "delete_when"])
@pytest.mark.parametrize("call", ["to_delta", "to_iceberg"])
def test_the_options_of_an_upsert_are_text(call: str, name: str, value: object) -> None:
    where = "/data/table" if call == "to_delta" else "lake.web.clicks"
    problem = refused(lambda pipeline: getattr(pipeline, call)(where, merge_on=["id"], **{name: value}))
    assert problem == f"{name} must be text, not {value!r}"


@pytest.mark.parametrize("names", [[""], ["id", " "]])
def test_a_column_has_a_name(names: list[str]) -> None:
    for build in (
        lambda pipeline: pipeline.deduplicate(names),
        lambda pipeline: pipeline.to_parquet("/data/table", partition_by=names),
        lambda pipeline: pipeline.to_delta("/data/table", merge_on=names),
    ):
        assert "must be a list of column names, not " in refused(build)


@pytest.mark.parametrize("target", [None, 0, -5, 5.0, True, b"64m", ["64m"], float("nan")])
def test_the_target_of_maintenance_is_a_size(target: Any) -> None:
    assert "target must be a number of bytes such as " in refused(lambda pipeline: pipeline.maintain(target=target))


@pytest.mark.parametrize("time", [None, 0, -5, True, "soon", b"1 hour", ["1 hour"], float("nan"), float("inf")])
def test_the_times_of_a_step_are_times(time: Any) -> None:
    assert refused(lambda pipeline: pipeline.maintain(time)).startswith("every must be ")
    assert refused(lambda pipeline: pipeline.deduplicate(["id"], time)).startswith("within must be ")


def test_times_and_sizes_may_be_numbers_of_seconds_and_bytes() -> None:
    pipeline = begun().deduplicate(["id"], within=90).maintain(2.5, target=1 << 20, vacuum_older_than=60)
    assert pipeline.to_parquet("/data/table") is not pipeline


def test_the_own_source_is_recognised_by_any_name_it_has() -> None:
    pipeline = Pipeline("file:///data/events", "/data/checkpoint")
    assert "own source" in refused(lambda it: it.to_buffer(Path("/data/events/")), pipeline)


@pytest.mark.parametrize(
    "build",
    [
        lambda it: it.dead_letters("/data/table").to_parquet("/data/table"),
        lambda it: it.to_parquet("/data/table").dead_letters("file:///data/table"),
    ],
)
def test_rows_and_dead_letters_cannot_share_a_table(build: Build) -> None:
    # Blocks of both have the same names, so that whichever comes second would count as written.
    assert "/data/table" in refused(build)


# Triggers


@pytest.mark.parametrize(
    ("trigger", "wanted"),
    [
        ("available_now", Trigger(available_now=True)),
        ("asap", Trigger()),
        ("10 seconds", Trigger(interval=10.0)),
        ("1 minute", Trigger(interval=60.0)),
        ("2 hours", Trigger(interval=7200.0)),
        ("1 Day", Trigger(interval=86400.0)),
        ("1.5 seconds", Trigger(interval=1.5)),
        ("200 milliseconds", Trigger(interval=0.2)),
    ],
)
def test_a_trigger_is_a_word_or_a_time_between_two_blocks(trigger: str, wanted: Trigger) -> None:
    assert Trigger.of(trigger) == wanted


@pytest.mark.parametrize("trigger", ["once", "", "10", "seconds", "-1 seconds", "10 fortnights", None, 10])
def test_another_trigger_is_refused(trigger: object) -> None:
    with pytest.raises(InvalidInput, match="trigger must be available_now, asap, or a time such as '10 seconds', not "):
        Trigger.of(trigger)


@pytest.mark.parametrize("trigger", ["10seconds", "1.5 minutes"])
def test_a_time_that_cannot_be_read_is_refused_too(trigger: str) -> None:
    with pytest.raises(InvalidInput, match="trigger must be"):
        Trigger.of(trigger)


# Immutability


@pytest.mark.parametrize(
    "build",
    [
        lambda it: it.parse("json", "id bigint"),
        lambda it: it.transform(same),
        lambda it: it.on_block(same),
        lambda it: it.dead_letters("/data/dead"),
        lambda it: it.to_parquet("/data/table"),
        lambda it: it.to_buffer("/data/out"),
        lambda it: it.to(same),
    ],
)
def test_a_call_returns_another_pipeline_and_leaves_this_one_as_it_was(build: Build) -> None:
    pipeline = begun()
    build(pipeline)
    build(pipeline)  # which is no second parse, table or sink
    pipeline.process(same).parse("json", "id bigint").dead_letters("/data/dead").to_buffer("/data/out")


def test_types_of_run_can_be_looked_up_as_of_any_other_method() -> None:
    for method in (Pipeline.run, Pipeline.process, Pipeline.to, Pipeline.read_table):
        assert "return" in typing.get_type_hints(method)
