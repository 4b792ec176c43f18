"""`load_pipeline`: a pipeline described in a TOML file. Every mistake in it is one line that names its place.

`docs/reference/options.md` has all keys there are.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import InvalidInput
from penstock.spark.pipeline.file_tables import Checker, Function, PipelineTable, ProcessTable, SinkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.pipeline import Pipeline

# How long the two ends of a worker's socket wait for each other: 15 seconds are short on a busy machine.
_SESSION_DEFAULTS = {"spark.python.authenticate.socketTimeout": "60s"}


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline as a file describes it: its steps in order, Spark's settings by name, and functions, imported."""

    path: str
    table: PipelineTable
    process: tuple[ProcessTable, ...]
    spark_config: Mapping[str, str] = field(repr=False)
    functions: Mapping[str, Function] = field(repr=False)

    @property
    def trigger(self) -> str:
        """When its blocks start."""
        return self.table.trigger

    def pipeline(self) -> Pipeline:
        """Make the pipeline. Raises `InvalidInput` for what `Pipeline` refuses, naming the file."""
        from penstock.spark.pipeline.pipeline import Pipeline

        try:
            return cast("Pipeline", build(self, Pipeline))
        except InvalidInput as error:
            raise InvalidInput(f"{self.path}: {error}") from error

    def session(self) -> SparkSession:
        """Start a Spark session, or return the one that runs.

        Workers on this host get this Python, unless PYSPARK_PYTHON names another, and find modules beside the file.
        """
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # A worker is a process of its own: it imports the user's modules by name, and does not have our sys.path.
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folder = os.path.dirname(os.path.abspath(self.path))
        if folder not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
        return cast("SparkSession", configure(self, SparkSession.builder).getOrCreate())


def load_pipeline(path: str | os.PathLike[str]) -> PipelineFile:
    """Read a file, check all of it, and import the functions it names; modules beside the file are found first.

    Raises `InvalidInput` with one line that names the file, the line, the key, and what is allowed or was meant.
    """
    name, text = os.fspath(path), ""
    try:
        with open(name, "rb") as file:
            text = file.read().decode()
        content = tomllib.loads(text)
    except FileNotFoundError as error:
        raise InvalidInput(f"{name}: there is no such file") from error
    except OSError as error:
        why = "it is a directory, and not a file" if isinstance(error, IsADirectoryError) else error.strerror
        raise InvalidInput(f"{name} cannot be read: {why}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{name}, line {line}: this is no TOML: it is not UTF-8") from error
    except ValueError as error:  # of `tomllib`, or of a number with thousands of digits
        problem, _, place = str(error).partition(" (at line ")
        line = int(place.partition(",")[0]) if "," in place else max(len(text.splitlines()), 1)
        raise InvalidInput(f"{name}, line {line}: this is no TOML: {problem.partition(' (at ')[0]}") from error
    except RecursionError as error:
        raise InvalidInput(f"{name}: this is no pipeline: arrays or tables in it are nested too deep") from error
    return PipelineFile(os.path.abspath(name), *Checker(name, text, content).check())


def build(file: PipelineFile, pipeline_class: Callable[..., Any]) -> Any:
    """Make a pipeline of the given class as the file describes it, in the order that `Pipeline` wants its steps."""
    table, sink = file.table, file.table.sink or SinkTable()
    pipeline = pipeline_class(source=table.source, checkpoint=table.checkpoint, options=table.options)
    for step in file.process:
        if step.before_parse:
            pipeline = pipeline.process(file.functions[step.function])
    if table.parse is not None:
        pipeline = pipeline.parse(table.parse.format, schema=table.parse.schema, on_error=table.parse.on_error)
    for step in file.process:
        if not step.before_parse:
            pipeline = pipeline.process(file.functions[step.function], schema=step.schema)
    if table.dead_letters is not None:
        pipeline = pipeline.dead_letters(table.dead_letters)
    partition_by = None if sink.partition_by is None else list(sink.partition_by)
    if sink.parquet is not None:
        return pipeline.to_parquet(sink.parquet, partition_by=partition_by, options=sink.options)
    if sink.delta is not None:
        return pipeline.to_delta(sink.delta, partition_by=partition_by)
    if sink.buffer is not None:
        return pipeline.to_buffer(sink.buffer, options=sink.options)
    return pipeline.to(file.functions[sink.function or ""])


def configure(file: PipelineFile, builder: Any) -> Any:
    """Give a session's builder the file's settings. What the file does not set, Spark and `spark-submit` do."""
    spark = file.table.spark
    builder = builder if spark.master is None else builder.master(spark.master)
    builder = builder if spark.app_name is None else builder.appName(spark.app_name)
    for name, value in (_SESSION_DEFAULTS | dict(file.spark_config)).items():
        builder = builder.config(name, value)
    return builder
