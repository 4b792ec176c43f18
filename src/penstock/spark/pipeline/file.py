"""`load_pipeline`: a pipeline described in a TOML file. Every mistake in it is one line that names its place.

msgspec checks the file against the tables below; its errors are given in the words of TOML, with the line of the key.
`docs/reference/options.md` has all keys there are.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast, get_args, get_type_hints

import msgspec

from penstock.errors import InvalidInput
from penstock.spark.java_start import sharing_options
from penstock.spark.pipeline.file_tables import (
    GOES_WITH,
    KINDS,
    TABLES,
    DeadLettersTable,
    PipelineTable,
    ProcessTable,
    SinkTable,
)
from penstock.spark.pipeline.schema_files import schemas_in
from penstock.spark.pipeline.triggers import ASAP, AVAILABLE_NOW, Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.pipeline import Pipeline

Function: TypeAlias = Callable[..., Any]
KeyPath: TypeAlias = tuple[str | int, ...]

_SINKS = f"one of {', '.join(KINDS)}"
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
# The types of Python's and of msgspec's errors.
_TYPES = {"str": "text", "bool": "true or false", "int": "an integer", "float": "a float", "list": "an array"}
_TYPES |= {"dict": "a table", "object": "a table", "datetime": "a date", "date": "a date", "time": "a time"}
# msgspec's errors: what is wrong, and the path of the value.
_ERROR = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<what>contains unknown|missing required) field `(?P<key>.*)`", re.DOTALL)
_EXPECTED_AT = {
    "process": '"module:function" or a list of them',
    "sink.partition_by": 'a list of columns, such as ["event"]',
    "parse.csv_columns": 'a list of columns, such as ["id"]',
    "sink.merge_on": 'a list of columns, such as ["id"]',
    "deduplicate.keys": 'a list of columns, such as ["id"]',
    "dead_letters": "text, or a table with url and kind",
}
_CONNECT = "sc://"
_DAEMON = "penstock.spark.worker_daemon"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# What may close a part of a file that ends within a text, and within arrays and inline tables.
_CLOSINGS = [
    text + "".join(brackets)
    for depth in range(4)
    for brackets in product("]}", repeat=depth)
    for text in ("", '"""', "'''")
]


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
        Raises `InvalidInput` where its master is a server of Spark Connect, and what that needs is not installed.
        """
        from pyspark.sql import SparkSession

        from penstock.spark.sessions import use_this_python

        use_this_python(master=self.table.spark.master or "local")
        # A worker is a process of its own: it imports the user's modules by name, and does not have our sys.path.
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        folder = os.path.dirname(os.path.abspath(self.path))
        if folder not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
        try:
            return cast("SparkSession", configure(self, SparkSession.builder).getOrCreate())
        except ImportError as error:
            raise InvalidInput(
                f"{self.path}: spark.master {self.table.spark.master!r} is a server of Spark Connect, which needs "
                f"more: pip install 'pyspark[connect]' ({error})"
            ) from error


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
        parse = msgspec.structs.asdict(table.parse)
        schemas = schemas_in(parse, os.path.dirname(file.path))
        pipeline = pipeline.parse(parse.pop("format"), **parse, **schemas)
    for step in file.process:
        if not step.before_parse:
            pipeline = pipeline.process(file.functions[step.function], schema=step.schema)
    if table.deduplicate is not None:
        pipeline = pipeline.deduplicate(list(table.deduplicate.keys), within=table.deduplicate.within)
    if isinstance(table.dead_letters, DeadLettersTable):
        letters = table.dead_letters
        options = letters.options or None
        pipeline = pipeline.dead_letters(letters.url, options, kind=letters.kind, catalog=letters.catalog)
    elif table.dead_letters is not None:
        pipeline = pipeline.dead_letters(table.dead_letters)
    if table.maintain is not None:
        pipeline = pipeline.maintain(**msgspec.structs.asdict(table.maintain))
    return _with_sink(file, pipeline, sink)


def _with_sink(file: PipelineFile, pipeline: Any, sink: SinkTable) -> Any:
    partition_by = None if sink.partition_by is None else list(sink.partition_by)
    if sink.parquet is not None:
        return pipeline.to_parquet(
            sink.parquet, partition_by=partition_by, options=sink.options, schema_evolution=sink.schema_evolution
        )
    if sink.buffer is not None:
        return pipeline.to_buffer(sink.buffer, options=sink.options)
    if sink.function is not None:
        return pipeline.to(file.functions[sink.function])
    upsert = {
        "merge_on": None if sink.merge_on is None else list(sink.merge_on),
        "order_by": sink.order_by,
        "delete_when": sink.delete_when,
        "schema_evolution": sink.schema_evolution,
        "merge_max_bytes": sink.merge_max_bytes,
    }
    if sink.delta is not None:
        return pipeline.to_delta(sink.delta, partition_by=partition_by, options=sink.options, **upsert)
    return pipeline.to_iceberg(sink.iceberg, catalog=sink.catalog, partition_by=partition_by, **upsert)


def configure(file: PipelineFile, builder: Any) -> Any:
    """Give a session's builder the file's settings. What the file does not set, Spark and `spark-submit` do."""
    from penstock.spark.sessions import SESSION_DEFAULTS

    spark = file.table.spark
    is_connect = (spark.master or "").startswith(_CONNECT)
    if spark.master is not None:
        builder = builder.remote(spark.master) if is_connect else builder.master(spark.master)
    builder = builder if spark.app_name is None else builder.appName(spark.app_name)
    settings = {} if is_connect else dict(SESSION_DEFAULTS)  # they are for when Spark starts, and there it has
    if (spark.master or "").startswith("local"):
        settings |= {"spark.python.daemon.module": _DAEMON, _JAVA_OPTIONS: sharing_options()}
    settings |= file.spark_config
    if settings.get(_JAVA_OPTIONS) and _JAVA_OPTIONS in file.spark_config:
        settings[_JAVA_OPTIONS] = sharing_options(file.spark_config[_JAVA_OPTIONS])
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


class Checker:
    """Checks the content of a file. Whatever is wrong in it is raised with its line."""

    def __init__(self, path: str, text: str, content: dict[str, Any]) -> None:
        self._path = path
        self._text = text
        self._content = content
        self._folder = os.path.dirname(os.path.abspath(path))

    def check(self) -> tuple[PipelineTable, tuple[ProcessTable, ...], dict[str, str], dict[str, Function]]:
        """Check everything, and import the functions: the fields of a `PipelineFile`. Raises `InvalidInput`."""
        try:
            table = msgspec.convert(self._content, PipelineTable)
        except msgspec.ValidationError as error:
            self._explain(str(error))
        try:
            Trigger.of(table.trigger)
        except InvalidInput:
            allowed = '"available_now", "asap" or an interval such as "10 seconds"'
            meant = _meant(table.trigger, (AVAILABLE_NOW, ASAP))
            self._refuse(("trigger",), f'trigger must be {allowed}, not "{table.trigger}"{meant}')
        for at, options in _plain_tables(table):
            for name, value in (options or {}).items():
                self._check_plain((*at, name), value)
        steps = self._steps(table)
        self._check_sink()
        config = dict(self._flat(("spark", "config"), table.spark.config))
        # Last, for they import the user's modules.
        names = dict(steps)
        if table.sink is not None and table.sink.function is not None:
            names["sink", "function"] = ProcessTable(function=table.sink.function)
        functions = {step.function: self._import(at, step.function) for at, step in names.items()}
        return table, tuple(steps.values()), config, functions

    def _steps(self, table: PipelineTable) -> dict[KeyPath, ProcessTable]:
        """The process steps, by where the file names their functions."""
        given = (table.process,) if isinstance(table.process, str) else table.process
        steps = dict[KeyPath, ProcessTable]()
        before: ProcessTable | None = None
        for number, one in enumerate(given):
            at: KeyPath = ("process",) if isinstance(table.process, str) else ("process", number)
            step = ProcessTable(function=one) if isinstance(one, str) else one
            if step.schema is not None and (step.before_parse or table.parse is None):
                self._refuse(
                    (*at, "schema"),
                    "process.schema is of columns, and there are none before [parse]: leave it out, or parse before",
                )
            if step.before_parse and before is not None and not before.before_parse:
                self._refuse(
                    (*at, "before_parse"),
                    "process.before_parse = true comes after a function that runs after [parse]: put it first",
                )
            steps[at if isinstance(one, str) else (*at, "function")] = before = step
        return steps

    def _check_sink(self) -> None:
        table = self._content.get("sink")
        if table is None:
            self._refuse((), f"[sink] is missing: a table with {_SINKS}")
        kinds = [kind for kind in table if kind in KINDS]
        if not kinds:
            self._refuse(("sink",), f"[sink] says not where to: it needs {_SINKS}")
        if len(kinds) > 1:
            self._refuse(("sink", kinds[1]), f"two sinks, sink.{kinds[0]} and sink.{kinds[1]}: a pipeline has one")
        for key, fits in GOES_WITH.items():
            if key in table and kinds[0] not in fits:
                self._refuse(("sink", key), f"sink.{key} goes with {' or '.join(fits)}, not with {kinds[0]}")

    def _flat(self, at: KeyPath, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Spark's settings as text. Their names have dots, which unquoted make tables within tables."""
        for name, value in table.items():
            if isinstance(value, dict):
                yield from ((f"{name}.{rest}", text) for rest, text in self._flat((*at, name), value))
            else:
                self._check_plain((*at, name), value)
                yield name, str(value).lower() if isinstance(value, bool) else str(value)

    def _check_plain(self, at: KeyPath, value: object) -> None:
        if not isinstance(value, str | int | float):
            self._refuse(at, f"{_name(at)} must be text, a number, or true or false, not {_type(value)}")

    def _import(self, at: KeyPath, named: str) -> Function:
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
            problem = " ".join(str(error).split())
            self._refuse(at, f"{what} cannot be imported: {type(error).__name__}: {problem}", error)
        for name in attribute.split("."):
            if not hasattr(found, name):
                self._refuse(at, f"{what} cannot be imported: there is no {name} in it{_meant(name, vars(found))}")
            found = getattr(found, name)
        if not callable(found):
            self._refuse(at, f"{what} must be a function, not {type(found).__name__}")
        return cast("Function", found)

    def _explain(self, text: str) -> NoReturn:
        """Raise an error of msgspec's in the words of the file: its keys, TOML's types, and what is allowed."""
        error = _ERROR.fullmatch(text)
        path = re.findall(r"\.(\w+)|\[(\d+)\]", (error and error["path"]) or "")
        at: KeyPath = tuple(key or int(number) for key, number in path)
        name, problem = _name(at), error["problem"] if error else text
        if found := _FIELD.fullmatch(problem):
            full = _name((*at, found["key"]))
            if found["what"] == "missing required":
                allowed = ': "json" or "msgpack"' if full == "parse.format" else ""
                self._refuse(at, f"{full} is missing{allowed}")
            known = TABLES[name].__struct_fields__
            more = _meant(found["key"], known) or f": there are {', '.join(known)}"
            if at and found["key"] in PipelineTable.__struct_fields__:
                more = f": {found['key']} belongs to the top, before the first [table]"
            self._refuse((*at, found["key"]), f"unknown key {full}{more}")
        value: Any = self._content
        for part in at:
            value = value[part]
        if problem.startswith("Invalid enum"):
            table, _, key = name.rpartition(".")
            words = get_args(get_type_hints(TABLES[table])[key])
            self._refuse(at, f'{name} must be one of {", ".join(words)}, not "{value}"{_meant(value, words)}')
        if name == "process" and isinstance(value, dict):
            self._refuse(at, "process is a list of functions: write [[process]], with two brackets")
        if name in TABLES and isinstance(value, list) and value and isinstance(value[0], dict):
            self._refuse(at, f"there is one {name} only: write [{name}], with one bracket")
        if "regex" in problem and name not in _EXPECTED_AT:
            self._refuse(at, f"{name} must not be empty")
        expected = _EXPECTED_AT.get(name) or _TYPES[re.split(r"[`| ]+", problem)[1]]
        kind = f", not {'a list with ' if isinstance(at[-1], int) else ''}{_type(value)}"
        self._refuse(at, f"{name} must be {expected}{'' if 'a list of columns' in expected else kind}")

    def _refuse(self, at: KeyPath, problem: str, cause: BaseException | None = None) -> NoReturn:
        raise InvalidInput(f"{self._path}, line {line_of(self._text, at)}: {problem}") from cause


def _plain_tables(table: PipelineTable) -> Iterator[tuple[KeyPath, dict[str, Any] | None]]:
    """The tables whose values are text, numbers, true or false."""
    yield ("options",), table.options
    if table.sink is not None:
        yield ("sink", "options"), table.sink.options
        yield ("sink", "catalog"), table.sink.catalog
    if isinstance(table.dead_letters, DeadLettersTable):
        yield ("dead_letters", "options"), table.dead_letters.options
        yield ("dead_letters", "catalog"), table.dead_letters.catalog


def _name(at: KeyPath) -> str:
    """A key as a person writes it: without the number of an array's element."""
    return ".".join(part for part in at if isinstance(part, str))


def _type(value: object) -> str:
    return _TYPES.get(type(value).__name__, type(value).__name__)


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def line_of(text: str, path: KeyPath) -> int:
    r"""On which line of a TOML file a key, table or element of an array begins: where the file has it if it ends there.

    For a path that is not in the file it is the line of the nearest table or array above.

    >>> line_of('a.b = 1\n[[c]]\nd = [\n 2,\n {e = 3}]', ("c", 0, "d", 1, "e"))
    5
    """
    whole = tomllib.loads(text)
    while not _has(whole, path):
        path = path[:-1]
    lines = text.split("\n")
    return next((number for number in range(1, len(lines)) if _has(_parsed(lines[:number]), path)), len(lines))


def _parsed(lines: list[str]) -> Any:
    part = "\n".join(lines) + "\n"
    for closing in _CLOSINGS:
        try:
            return tomllib.loads(part + closing)
        except tomllib.TOMLDecodeError:
            continue
    return None  # deeper than that; the line where it is closed will do


def _has(content: Any, path: KeyPath) -> bool:
    try:
        for part in path:
            content = content[part]
    except (KeyError, IndexError, TypeError):
        return False
    return content is not None
