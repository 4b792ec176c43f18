"""`load_pipeline`: a pipeline described in a TOML file. Every mistake in it is one line that says where, and what.

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

import difflib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from penstock.errors import InvalidInput
from penstock.spark.pipeline.toml_lines import KeyPath, line_numbers
from penstock.spark.pipeline.triggers import ASAP, AVAILABLE_NOW, is_trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.pipeline import Pipeline

Function: TypeAlias = Callable[..., Any]
Plain: TypeAlias = str | int | float | bool

_TOP = ("source", "checkpoint", "trigger", "dead_letters", "options", "parse", "process", "sink", "spark")
_PARSE = ("format", "schema", "on_error")
_PROCESS = ("function", "schema", "before_parse")
_KINDS = ("parquet", "delta", "buffer", "function")
_SINK = (*_KINDS, "partition_by", "options")
_SPARK = ("master", "app_name", "config")
_FORMATS = ("json", "msgpack")
_ON_ERROR = ("dlq", "skip", "fail")
_TRIGGERS = (AVAILABLE_NOW, ASAP)
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TYPES = {
    bool: "true or false",
    int: "an integer",
    float: "a float",
    str: "text",
    list: "an array",
    dict: "a table",
    datetime: "a date",
    date: "a date",
    time: "a time",
}


@dataclass(frozen=True, slots=True)
class ParseStep:
    """How records become columns."""

    format: str
    schema: str
    on_error: str = "dlq"


@dataclass(frozen=True, slots=True)
class ProcessStep:
    """A function of the user's; before parsing it gets records, after it columns."""

    function: Function
    schema: str | None = None
    before_parse: bool = False


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the pipeline ends: `kind` is parquet, delta, buffer or function, and `target` its URL or the function."""

    kind: str
    target: str | Function
    partition_by: tuple[str, ...] | None = None
    options: Mapping[str, Plain] = field(default_factory=dict, repr=False)  # there may be credentials among them


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What the session is made with."""

    master: str | None = None
    app_name: str | None = None
    config: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline as a file describes it, checked, its functions imported."""

    path: str
    source: str
    checkpoint: str
    sink: Sink
    trigger: str = "asap"
    dead_letters: str | None = None
    options: Mapping[str, Plain] = field(default_factory=dict, repr=False)
    parse: ParseStep | None = None
    process: tuple[ProcessStep, ...] = ()
    spark: SparkSettings = SparkSettings()

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
        # A worker is a process of its own: it imports the user's modules by name, and knows nothing of our sys.path.
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folder = os.path.dirname(os.path.abspath(self.path))
        if folder not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
        return cast("SparkSession", configure(self.spark, SparkSession.builder).getOrCreate())


def load_pipeline(path: str | os.PathLike[str]) -> PipelineFile:
    """Read a file, check all of it, and import the functions it names; modules beside the file are found first.

    Raises `InvalidInput` with one line that names the file, the line, the key, and what is allowed or was meant.
    """
    shown = os.fspath(path)
    data = _read(shown)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{shown}, line {line}: this is no TOML: it is not UTF-8") from error
    try:
        content = tomllib.loads(text)
        lines = line_numbers(text)
    except ValueError as error:  # of `tomllib`, or of a number with thousands of digits
        raise InvalidInput(_not_toml(shown, text, str(error))) from error
    except RecursionError as error:
        raise InvalidInput(f"{shown}: this is no pipeline: arrays or tables in it are nested too deep") from error
    return _Reader(shown, content, lines).read()


def build(file: PipelineFile, pipeline_class: Callable[..., Any]) -> Any:
    """Make a pipeline of the given class as the file says, in the order that `Pipeline` wants its steps."""
    pipeline = pipeline_class(source=file.source, checkpoint=file.checkpoint, options=dict(file.options))
    for step in file.process:
        if step.before_parse:
            pipeline = pipeline.process(step.function)
    if file.parse is not None:
        pipeline = pipeline.parse(file.parse.format, schema=file.parse.schema, on_error=file.parse.on_error)
    for step in file.process:
        if not step.before_parse:
            pipeline = pipeline.process(step.function, schema=step.schema)
    if file.dead_letters is not None:
        pipeline = pipeline.dead_letters(file.dead_letters)
    sink = file.sink
    partition_by = None if sink.partition_by is None else list(sink.partition_by)
    match sink.kind:
        case "parquet":
            return pipeline.to_parquet(sink.target, partition_by=partition_by, options=dict(sink.options))
        case "delta":
            return pipeline.to_delta(sink.target, partition_by=partition_by)
        case "buffer":
            return pipeline.to_buffer(sink.target, options=dict(sink.options))
        case _:
            return pipeline.to(sink.target)


def configure(settings: SparkSettings, builder: Any) -> Any:
    """Give a session's builder what the file says of it. What is not said is left to Spark, and to `spark-submit`."""
    if settings.master is not None:
        builder = builder.master(settings.master)
    if settings.app_name is not None:
        builder = builder.appName(settings.app_name)
    for name, value in settings.config.items():
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


class _Reader:
    """Walks through the content of a file. Whatever is wrong there is raised with its line."""

    def __init__(self, path: str, content: dict[str, Any], lines: Mapping[KeyPath, int]) -> None:
        self._path = path
        self._content = content
        self._lines = lines
        self._folder = os.path.dirname(os.path.abspath(path))

    def read(self) -> PipelineFile:
        top = self._content
        self._check_keys(top, (), _TOP)
        source, checkpoint = self._required(top, (), "source"), self._required(top, (), "checkpoint")
        trigger = self._trigger()
        parse = self._parse()
        return PipelineFile(
            path=os.path.abspath(self._path),
            source=source,
            checkpoint=checkpoint,
            trigger=trigger,
            dead_letters=self._text(top, (), "dead_letters"),
            options=self._options((), "options"),
            parse=parse,
            spark=self._spark(),
            # Last, for they import the user's modules.
            process=self._process(has_parse=parse is not None),
            sink=self._sink(),
        )

    def _trigger(self) -> str:
        trigger = self._text(self._content, (), "trigger")
        if trigger is None:
            return ASAP
        if not is_trigger(trigger):
            allowed = '"available_now", "asap" or an interval such as "10 seconds"'
            self._refuse(("trigger",), f'trigger must be {allowed}, not "{trigger}"{_meant(trigger, _TRIGGERS)}')
        return trigger

    def _parse(self) -> ParseStep | None:
        table = self._table((), "parse")
        if table is None:
            return None
        at = ("parse",)
        self._check_keys(table, at, _PARSE)
        form = self._word(table, at, "format", _FORMATS)
        if form is None:
            self._refuse(at, 'parse.format is missing: "json" or "msgpack"')
        schema = self._required(table, at, "schema")
        return ParseStep(form, schema, self._word(table, at, "on_error", _ON_ERROR) or "dlq")

    def _process(self, *, has_parse: bool) -> tuple[ProcessStep, ...]:
        given = self._content.get("process", [])
        if isinstance(given, dict):
            self._refuse(("process",), "process is a list of functions: write [[process]], with two brackets")
        if isinstance(given, str):
            return (ProcessStep(self._function(("process",), given)),)
        if not isinstance(given, list):
            self._refuse(("process",), f'process must be "module:function" or a list of them, not {_type(given)}')
        steps = list[ProcessStep]()
        for number, one in enumerate(given):
            step = self._step(("process", number), one, has_parse=has_parse)
            if step.before_parse and steps and not steps[-1].before_parse:
                self._refuse(
                    ("process", number, "before_parse"),
                    "process.before_parse = true comes after a function that runs after [parse]: put it first",
                )
            steps.append(step)
        return tuple(steps)

    def _step(self, at: KeyPath, given: object, *, has_parse: bool) -> ProcessStep:
        if isinstance(given, str):
            return ProcessStep(self._function(at, given))
        if not isinstance(given, dict):
            self._refuse(at, f'process must be "module:function" or a list of them, not a list with {_type(given)}')
        self._check_keys(given, at, _PROCESS)
        before_parse = given.get("before_parse", False)
        if not isinstance(before_parse, bool):
            self._refuse(
                (*at, "before_parse"), f"process.before_parse must be true or false, not {_type(before_parse)}"
            )
        schema = self._text(given, at, "schema")
        if schema is not None and (before_parse or not has_parse):
            self._refuse(
                (*at, "schema"),
                "process.schema is of columns, and there are none before [parse]: leave it out, or parse before",
            )
        function = self._required(given, at, "function")
        return ProcessStep(self._function((*at, "function"), function), schema, before_parse)

    def _sink(self) -> Sink:
        allowed = "one of parquet, delta, buffer, function"
        table = self._table((), "sink")
        if table is None:
            self._refuse((), f"[sink] is missing: a table with {allowed}")
        at = ("sink",)
        self._check_keys(table, at, _SINK)
        kinds = [kind for kind in table if kind in _KINDS]
        if not kinds:
            self._refuse(at, f"[sink] says not where to: it needs {allowed}")
        if len(kinds) > 1:
            self._refuse((*at, kinds[1]), f"two sinks, sink.{kinds[0]} and sink.{kinds[1]}: a pipeline has one")
        kind = kinds[0]
        for key, fits in (("partition_by", ("parquet", "delta")), ("options", ("parquet", "buffer"))):
            if key in table and kind not in fits:
                self._refuse((*at, key), f"sink.{key} goes with {' or '.join(fits)}, not with {kind}")
        target: str | Function = self._required(table, at, kind)
        partition_by = self._names(table, at, "partition_by")
        options = self._options(at, "options")
        if kind == "function":
            target = self._function((*at, kind), cast("str", target))
        return Sink(kind, target, partition_by, options)

    def _spark(self) -> SparkSettings:
        table = self._table((), "spark")
        if table is None:
            return SparkSettings()
        at = ("spark",)
        self._check_keys(table, at, _SPARK)
        config = self._flat((*at, "config"), self._table(at, "config") or {})
        return SparkSettings(self._text(table, at, "master"), self._text(table, at, "app_name"), config)

    def _flat(self, at: KeyPath, table: dict[str, Any]) -> dict[str, str]:
        """Spark's settings as text. Their names have dots, which unquoted make tables within tables."""
        settings = dict[str, str]()
        for name, value in table.items():
            if isinstance(value, dict):
                settings |= {f"{name}.{rest}": text for rest, text in self._flat((*at, name), value).items()}
            else:
                plain = self._plain((*at, name), value)
                settings[name] = str(plain).lower() if isinstance(plain, bool) else str(plain)
        return settings

    def _options(self, at: KeyPath, key: str) -> dict[str, Plain]:
        table = self._table(at, key) or {}
        return {name: self._plain((*at, key, name), value) for name, value in table.items()}

    def _plain(self, at: KeyPath, value: object) -> Plain:
        if not isinstance(value, str | int | float):
            self._refuse(at, f"{_name(at)} must be text, a number, or true or false, not {_type(value)}")
        return value

    def _table(self, at: KeyPath, key: str) -> dict[str, Any] | None:
        table = self._at(at).get(key)
        name = _name((*at, key))
        if isinstance(table, list) and table and isinstance(table[0], dict):
            self._refuse((*at, key), f"there is one {name} only: write [{name}], with one bracket")
        if table is not None and not isinstance(table, dict):
            self._refuse((*at, key), f"{name} must be a table, not {_type(table)}")
        return table

    def _at(self, at: KeyPath) -> dict[str, Any]:
        found = self._content
        for part in at:
            found = found[cast("str", part)]
        return found

    def _required(self, table: dict[str, Any], at: KeyPath, key: str) -> str:
        text = self._text(table, at, key)
        if text is None:
            self._refuse(at, f"{_name((*at, key))} is missing")
        return text

    def _text(self, table: dict[str, Any], at: KeyPath, key: str) -> str | None:
        value = table.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._refuse((*at, key), f"{_name((*at, key))} must be text, not {_type(value)}")
        if not value.strip():
            self._refuse((*at, key), f"{_name((*at, key))} must not be empty")
        return value

    def _word(self, table: dict[str, Any], at: KeyPath, key: str, words: tuple[str, ...]) -> str | None:
        word = self._text(table, at, key)
        if word is not None and word not in words:
            name = _name((*at, key))
            self._refuse((*at, key), f'{name} must be one of {", ".join(words)}, not "{word}"{_meant(word, words)}')
        return word

    def _names(self, table: dict[str, Any], at: KeyPath, key: str) -> tuple[str, ...] | None:
        value = table.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            self._refuse((*at, key), f'{_name((*at, key))} must be a list of columns, such as ["event"]')
        return tuple(value)

    def _check_keys(self, table: dict[str, Any], at: KeyPath, known: tuple[str, ...]) -> None:
        for key in table:
            if key in known:
                continue
            more = _meant(key, known) or f": there are {', '.join(known)}"
            if at and key in _TOP:
                more = f": {key} belongs to the top, before the first [table]"
            self._refuse((*at, key), f"unknown key {_name((*at, key))}{more}")

    def _function(self, at: KeyPath, named: str) -> Function:
        """Import "module:function"."""
        what = f'{_name(at)} "{named}"'
        if not _FUNCTION.fullmatch(named):
            self._refuse(at, f'{what} must be "module:function"')
        module_name, _, attribute = named.partition(":")
        if sys.path[:1] != [self._folder]:
            sys.path.insert(0, self._folder)
        try:
            found: Any = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # noqa: BLE001  it is the user's code, and may raise anything
            said = " ".join(str(error).split())
            self._refuse(at, f"{what} cannot be imported: {type(error).__name__}: {said}", error)
        for name in attribute.split("."):
            if not hasattr(found, name):
                self._refuse(at, f"{what} cannot be imported: there is no {name} in it{_meant(name, vars(found))}")
            found = getattr(found, name)
        if not callable(found):
            self._refuse(at, f"{what} must be a function, not {type(found).__name__}")
        return cast("Function", found)

    def _refuse(self, at: KeyPath, problem: str, cause: BaseException | None = None) -> NoReturn:
        place = at
        while place and place not in self._lines:
            place = place[:-1]
        raise InvalidInput(f"{self._path}, line {self._lines.get(place, 1)}: {problem}") from cause


def _name(at: KeyPath) -> str:
    """How a person names a key: without the number of an array's element."""
    return ".".join(part for part in at if isinstance(part, str))


def _type(value: object) -> str:
    return _TYPES.get(type(value), type(value).__name__)


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
