"""`load_pipeline`: a pipeline described in a TOML file. Every mistake in it is one line that names its place.

The whole shape, with all keys there are:

```toml
source = "file:///data/events"           # required
checkpoint = "file:///data/checkpoint"   # required
trigger = "available_now"                # or "asap", the default, or "10 seconds"
dead_letters = "file:///data/dlq"

[options]                                # read options of the data source, and storage options
maxBytesPerTrigger = 1_000_000

[parse]
format = "json"                          # or "msgpack"
schema = "id bigint, event string"
on_error = "dlq"                         # the default; or "skip", "fail"

[[process]]                              # any number, in order; or process = "module:function", or a list of them
function = "my_module:enrich"
schema = "id bigint, name string"        # of what it returns, if that is not what it gets
before_parse = false                     # true: it gets a WorkBatch of raw records

[sink]                                   # one of parquet, delta, buffer, function = "module:function"
parquet = "file:///data/table"
partition_by = ["event"]                 # parquet and delta

[sink.options]                           # storage options: parquet and buffer

[spark]
master = "local[*]"
app_name = "clicks"

[spark.config]
"spark.sql.shuffle.partitions" = 4
```
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import InvalidInput
from penstock.spark.pipeline.file_tables import Checked, Checker, SinkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.pipeline import Pipeline

# How long the two ends of a worker's socket wait for each other: 15 seconds are short on a busy machine.
_SESSION_DEFAULTS = {"spark.python.authenticate.socketTimeout": "60s"}


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline as a file describes it."""

    path: str
    content: Checked

    @property
    def trigger(self) -> str:
        """When its blocks start."""
        return self.content.table.trigger

    def pipeline(self) -> Pipeline:
        """Make the pipeline. Raises `InvalidInput` for what `Pipeline` refuses, naming the file."""
        from penstock.spark.pipeline.pipeline import Pipeline

        try:
            return cast("Pipeline", build(self.content, Pipeline))
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
        return cast("SparkSession", configure(self.content, SparkSession.builder).getOrCreate())


def load_pipeline(path: str | os.PathLike[str]) -> PipelineFile:
    """Read a file, check all of it, and import the functions it names; modules beside the file are found first.

    Raises `InvalidInput` with one line that names the file, the line, the key, and what is allowed or was meant.
    """
    name = os.fspath(path)
    data = _read(name)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{name}, line {line}: this is no TOML: it is not UTF-8") from error
    try:
        content = tomllib.loads(text)
    except ValueError as error:  # of `tomllib`, or of a number with thousands of digits
        raise InvalidInput(_not_toml(name, text, str(error))) from error
    except RecursionError as error:
        raise InvalidInput(f"{name}: this is no pipeline: arrays or tables in it are nested too deep") from error
    return PipelineFile(os.path.abspath(name), Checker(name, text, content).check())


def build(file: Checked, pipeline_class: Callable[..., Any]) -> Any:
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


def configure(file: Checked, builder: Any) -> Any:
    """Give a session's builder the file's settings. What the file does not set, Spark and `spark-submit` do."""
    if file.table.spark.master is not None:
        builder = builder.master(file.table.spark.master)
    if file.table.spark.app_name is not None:
        builder = builder.appName(file.table.spark.app_name)
    for name, value in (_SESSION_DEFAULTS | dict(file.spark_config)).items():
        builder = builder.config(name, value)
    return builder


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise InvalidInput(f"{path}: there is no such file") from error
    except OSError as error:
        why = "it is a directory, and not a file" if isinstance(error, IsADirectoryError) else error.strerror
        raise InvalidInput(f"{path} cannot be read: {why}") from error


def _not_toml(path: str, text: str, problem: str) -> str:
    place = re.search(r" \(at line (\d+), column \d+\)$", problem)
    line = int(place[1]) if place else max(len(text.splitlines()), 1)
    return f"{path}, line {line}: this is no TOML: {problem.partition(' (at ')[0]}"
