"""A pipeline in a TOML file: what it makes, and what is problem of each mistake. No Spark runs here."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.spark.java_start import sharing_options
from penstock.spark.pipeline.file import PipelineFile, build, configure, line_of, load_pipeline
from tests.support.command import run
from tests.support.repository import ROOT

MODULE = "functions_of_a_pipeline_file"
FUNCTIONS = """
def enrich(batch):
    return batch

def write(frame, block):
    pass

class Names:
    @staticmethod
    def upper(batch):
        return batch

number = 5
"""
WAITING = ("spark.python.authenticate.socketTimeout", "60s")
PLACES = 'source = "events"\ncheckpoint = "checkpoint"\n'
SINK = '[sink]\nparquet = "table"\n'
PARSE = '[parse]\nformat = "json"\nschema = "id bigint"\n'
PARSED: dict[str, object] = {"on_error": "dlq", "mode": "strict", "rescue": None, "timestamp_unit": None}
APPENDED: dict[str, object] = {
    "merge_on": None,
    "order_by": None,
    "delete_when": None,
    "schema_evolution": "add",
    "merge_max_bytes": None,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the file is, with a module beside it that is found nowhere else."""
    (tmp_path / f"{MODULE}.py").write_text(FUNCTIONS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_of_a_pipeline_file")]:
        del sys.modules[name]


FORMATS = "json, msgpack, auto, avro, protobuf, csv, json-values"


def load(folder: Path, text: str) -> PipelineFile:
    (folder / "pipeline.toml").write_text(text)
    return load_pipeline(folder / "pipeline.toml")


class Recorder:
    """Stands where `Pipeline` or a session's builder does, and notes what is asked of it."""

    def __init__(self, *args: object, **named: object) -> None:
        self.calls: list[tuple[Any, ...]] = [("new", *args, named)] if args or named else []

    def __getattr__(self, name: str) -> Any:
        def call(*args: object, **named: object) -> Recorder:
            self.calls.append((name, *args, named) if named else (name, *args))
            return self

        return call


def calls(folder: Path, text: str) -> list[tuple[Any, ...]]:
    steps = build(load(folder, text), Recorder)
    assert isinstance(steps, Recorder)
    return steps.calls


WHOLE = f"""
source = "file:///data/events"
checkpoint = "file:///data/checkpoint"
trigger = "10 seconds"
dead_letters = "file:///data/dlq"

[options]
maxBytesPerTrigger = 1_000_000
sync = false

[parse]
format = "msgpack"
schema = "id bigint, event string"
on_error = "skip"

[[process]]
function = "{MODULE}:Names.upper"
before_parse = true

[[process]]
function = "{MODULE}:enrich"
schema = "id bigint, name string"

[sink]
parquet = "file:///data/table"
partition_by = ["event"]

[sink.options]
sync = true

[spark]
master = "local[2]"
app_name = "clicks"

[spark.config]
"spark.sql.shuffle.partitions" = 4
spark.ui.enabled = false
"""


def test_a_whole_file_becomes_a_pipeline_with_its_steps_in_order(folder: Path) -> None:
    assert load(folder, WHOLE).trigger == "10 seconds"
    steps = calls(folder, WHOLE)
    module = sys.modules[MODULE]
    assert steps == [
        (
            "new",
            {
                "source": "file:///data/events",
                "checkpoint": "file:///data/checkpoint",
                "options": {"maxBytesPerTrigger": 1_000_000, "sync": False},
            },
        ),
        ("process", module.Names.upper),
        ("parse", "msgpack", {**PARSED, "schema": "id bigint, event string", "on_error": "skip"}),
        ("process", module.enrich, {"schema": "id bigint, name string"}),
        ("dead_letters", "file:///data/dlq"),
        (
            "to_parquet",
            "file:///data/table",
            {"partition_by": ["event"], "options": {"sync": True}, "schema_evolution": "add"},
        ),
    ]


def test_a_whole_file_configures_its_session(folder: Path) -> None:
    assert configure(load(folder, WHOLE), Recorder()).calls == [
        ("master", "local[2]"),
        ("appName", "clicks"),
        ("config", *WAITING),
        ("config", "spark.python.daemon.module", "penstock.spark.worker_daemon"),
        ("config", "spark.driver.extraJavaOptions", sharing_options()),
        ("config", "spark.sql.shuffle.partitions", "4"),
        ("config", "spark.ui.enabled", "false"),
    ]


def test_a_master_of_spark_connect_is_reached_with_the_files_settings_alone(folder: Path) -> None:
    text = WHOLE.replace('"local[2]"', '"sc://host:15002"')
    assert configure(load(folder, text), Recorder()).calls == [
        ("remote", "sc://host:15002"),
        ("appName", "clicks"),
        ("config", "spark.sql.shuffle.partitions", "4"),
        ("config", "spark.ui.enabled", "false"),
    ]


def test_the_least_file_has_the_defaults(folder: Path) -> None:
    found = load(folder, PLACES + SINK)
    assert found.trigger == "asap"
    assert configure(found, Recorder()).calls == [("config", *WAITING)]
    assert build(found, Recorder).calls == [
        ("new", {"source": "events", "checkpoint": "checkpoint", "options": {}}),
        ("to_parquet", "table", {"partition_by": None, "options": {}, "schema_evolution": "add"}),
    ]


def test_what_cannot_be_parsed_is_a_dead_letter_by_default(folder: Path) -> None:
    assert ("parse", "json", {**PARSED, "schema": "id bigint"}) in calls(folder, PLACES + PARSE + SINK)


def test_every_step_has_a_table(folder: Path) -> None:
    text = f"""
source = "events"

[parse]
format = "json"
schema = "infer"
mode = "lenient"
rescue = "_rescued"
timestamp_unit = {{at = "ms"}}

[deduplicate]
keys = ["id"]
within = "2 hours"

[dead_letters]
url = "lake.events.dead"
kind = "iceberg"
catalog = {{warehouse = "w"}}

[maintain]
every = "10 minutes"

{SINK}"""
    assert calls(folder, text)[1:-1] == [
        (
            "parse",
            "json",
            {**PARSED, "schema": "infer", "mode": "lenient", "rescue": "_rescued", "timestamp_unit": {"at": "ms"}},
        ),
        ("deduplicate", ["id"], {"within": "2 hours"}),
        ("dead_letters", "lake.events.dead", None, {"kind": "iceberg", "catalog": {"warehouse": "w"}}),
        ("maintain", {"every": "10 minutes", "target": "128m", "vacuum_older_than": None}),
    ]


@pytest.mark.parametrize("trigger", ["available_now", "asap", "1 second", "500 milliseconds", "2 hours"])
def test_every_trigger_is_taken(folder: Path, trigger: str) -> None:
    assert load(folder, f'{PLACES}trigger = "{trigger}"\n{SINK}').trigger == trigger


@pytest.mark.parametrize(
    ("sink", "call"),
    [
        (
            'delta = "d"\npartition_by = ["a", "b"]',
            ("to_delta", "d", {**APPENDED, "partition_by": ["a", "b"], "options": {}}),
        ),
        (
            'iceberg = "c.n.t"\ncatalog = {warehouse = "w"}\nmerge_on = ["id"]\ndelete_when = "gone"',
            (
                "to_iceberg",
                "c.n.t",
                {
                    **APPENDED,
                    "catalog": {"warehouse": "w"},
                    "partition_by": None,
                    "merge_on": ["id"],
                    "delete_when": "gone",
                },
            ),
        ),
        ('buffer = "b"\noptions = {sync = false}', ("to_buffer", "b", {"options": {"sync": False}})),
    ],
    ids=["delta", "iceberg", "buffer"],
)
def test_other_sinks_are_called_with_what_they_take(folder: Path, sink: str, call: tuple[Any, ...]) -> None:
    assert calls(folder, f"{PLACES}[sink]\n{sink}")[-1] == call


def test_a_function_can_be_the_sink(folder: Path) -> None:
    steps = calls(folder, f'{PLACES}[sink]\nfunction = "{MODULE}:write"')
    assert steps[-1] == ("to", sys.modules[MODULE].write)


@pytest.mark.parametrize(
    ("process", "many"),
    [
        (f'process = "{MODULE}:enrich"', 1),
        (f'process = ["{MODULE}:enrich", "{MODULE}:enrich"]', 2),
        (f'process = [\n  {{function = "{MODULE}:enrich"}},\n  "{MODULE}:enrich",\n]', 2),
    ],
    ids=["one", "a list", "a list of both forms"],
)
def test_functions_can_be_written_in_short(folder: Path, process: str, many: int) -> None:
    steps = calls(folder, f"{PLACES}{process}\n{PARSE}{SINK}")
    assert steps[2:-1] == [("process", sys.modules[MODULE].enrich, {"schema": None})] * many


def test_a_module_beside_the_file_is_found_before_any_other(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / f"{MODULE}.py").write_text("")
    sys.path.insert(0, str(elsewhere))
    load(folder, f'process = "{MODULE}:enrich"\n{PLACES}{SINK}')
    assert sys.modules[MODULE].__file__ == str(folder / f"{MODULE}.py")


def test_credentials_among_the_options_are_not_shown(folder: Path) -> None:
    text = f'{PLACES}[options]\nsecret = "hunter22"\n{SINK}options = {{secret = "hunter22"}}\n'
    text += '[spark.config]\n"spark.hadoop.fs.s3a.secret.key" = "hunter22"'
    assert "hunter22" not in repr(load(folder, text))


@pytest.mark.parametrize("before", [None, "/somewhere"], ids=["nothing was set", "something was set"])
def test_workers_on_this_host_get_this_python_and_find_the_modules(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    session = pytest.importorskip("pyspark.sql").SparkSession
    builder = Recorder()
    monkeypatch.setattr(session, "builder", builder)
    for name in ("PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever becomes of it
        monkeypatch.delenv(name)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
        monkeypatch.setenv("PYSPARK_PYTHON", "another")
    load(folder, PLACES + SINK).session()
    assert builder.calls == [("config", *WAITING), ("getOrCreate",)]
    assert os.environ["PYSPARK_PYTHON"] == ("another" if before else sys.executable)
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(folder), *([before] if before else [])]


def mistake(folder: Path, text: str) -> str:
    """What is problem of a file, after its name."""
    with pytest.raises(InvalidInput) as caught:
        load(folder, text)
    problem = str(caught.value)
    assert "\n" not in problem
    start = f"{folder / 'pipeline.toml'}, "
    assert problem.startswith(start)
    return problem.removeprefix(start)


TOP = "source, checkpoint, trigger, dead_letters, options, parse, process, deduplicate, sink, maintain, spark"
SINKS = "one of parquet, delta, iceberg, buffer, function"
TRIGGERS = 'trigger must be "available_now", "asap" or an interval such as "10 seconds"'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # an unknown key is named with its line and the key that was meant
        ('sorce = "a"\ncheckpoint = "b"', "line 1: unknown key sorce; did you mean source?"),
        (f"{PLACES}colour = 3", f"line 3: unknown key colour: there are {TOP}"),
        (f"{PLACES}{SINK}[sprak]", "line 5: unknown key sprak; did you mean spark?"),
        (f"{PLACES}[parse]\n'formt' = 1", "line 4: unknown key parse.formt; did you mean format?"),
        (f"{PLACES}parse.on_eror = 1", "line 3: unknown key parse.on_eror; did you mean on_error?"),
        (
            f"{PLACES}{PARSE}# [x]\ntrigger = 'asap'",
            "line 7: unknown key parse.trigger: trigger belongs to the top, before the first [table]",
        ),
        (
            f'{PLACES}[[process]]\nfunction = "{MODULE}:enrich"\n[[process]]\nfuncton = ""',
            "line 6: unknown key process.functon; did you mean function?",
        ),
        (
            f"{PLACES}process = [\n  {{function_ = 1}}\n]",
            "line 4: unknown key process.function_; did you mean function?",
        ),
        (f'{PLACES}{SINK}partitionby = ["a"]', "line 5: unknown key sink.partitionby; did you mean partition_by?"),
        (f"{PLACES}{SINK}[spark]\n\nappname = 'a'", "line 7: unknown key spark.appname; did you mean app_name?"),
        # a key that is missing is named with the line of its table
        (f'checkpoint = "b"\n{SINK}', "line 1: source is missing"),
        (PLACES, f"line 1: [sink] is missing: a table with {SINKS}"),
        (f"{PLACES}\n[sink]", f"line 4: [sink] says not where to: it needs {SINKS}"),
        (f'{PLACES}[parse]\nschema = "a int"\n{SINK}', 'line 3: parse.format is missing: "json" or "msgpack"'),
        (f'{PLACES}\n\n[parse]\nformat = "json"\n{SINK}', "line 5: parse.schema is missing"),
        (f"{PLACES}{SINK}[[process]]\nbefore_parse = true", "line 5: process.function is missing"),
        # a wrong type is named with its line
        ('source = 5\ncheckpoint = "b"', "line 1: source must be text, not an integer"),
        ('source = "a"\ncheckpoint = ["b"]', "line 2: checkpoint must be text, not an array"),
        ('source = " "\ncheckpoint = "b"', "line 1: source must not be empty"),
        (f"{PLACES}trigger = 10", "line 3: trigger must be text, not an integer"),
        (
            f"{PLACES}dead_letters = true",
            "line 3: dead_letters must be text, or a table with url and kind, not true or false",
        ),
        (f"{PLACES}options = 1", "line 3: options must be a table, not an integer"),
        (
            f"{PLACES}[options]\nat = 2026-01-01",
            "line 4: options.at must be text, a number, or true or false, not a date",
        ),
        (
            f"{PLACES}[options]\na = 1\nb.c = 2",
            "line 5: options.b must be text, a number, or true or false, not a table",
        ),
        (f'{PLACES}parse = "json"', "line 3: parse must be a table, not text"),
        (f"{PLACES}[[parse]]", "line 3: there is one parse only: write [parse], with one bracket"),
        (f"{PLACES}[parse]\nformat = 1", "line 4: parse.format must be text, not an integer"),
        (f'{PLACES}[parse]\nformat = "json"\nschema = {{}}', "line 5: parse.schema must be text, not a table"),
        (f"{PLACES}process = 1", 'line 3: process must be "module:function" or a list of them, not an integer'),
        (
            f"{PLACES}process = [\n  1.5\n]",
            'line 4: process must be "module:function" or a list of them, not a list with a float',
        ),
        (f"{PLACES}[process]", "line 3: process is a list of functions: write [[process]], with two brackets"),
        (
            f"{PLACES}[[process]]\nbefore_parse = 1",
            "line 4: process.before_parse must be true or false, not an integer",
        ),
        (f"{PLACES}[[process]]\nfunction = 1", "line 4: process.function must be text, not an integer"),
        (f"{PLACES}{PARSE}[[process]]\nschema = 1", "line 7: process.schema must be text, not an integer"),
        (f'{PLACES}sink = "table"', "line 3: sink must be a table, not text"),
        (f"{PLACES}[sink]\nparquet = 1", "line 4: sink.parquet must be text, not an integer"),
        (f'{PLACES}{SINK}partition_by = "a"', 'line 5: sink.partition_by must be a list of columns, such as ["event"]'),
        (f"{PLACES}{SINK}partition_by = [1]", 'line 5: sink.partition_by must be a list of columns, such as ["event"]'),
        (f"{PLACES}{SINK}options = 1", "line 5: sink.options must be a table, not an integer"),
        (
            f"{PLACES}{SINK}[sink.options]\na = []",
            "line 6: sink.options.a must be text, a number, or true or false, not an array",
        ),
        (f"{PLACES}{SINK}[spark]\nmaster = 4", "line 6: spark.master must be text, not an integer"),
        (f"{PLACES}{SINK}[spark]\napp_name = 4", "line 6: spark.app_name must be text, not an integer"),
        (f"{PLACES}{SINK}[spark]\nconfig = 4", "line 6: spark.config must be a table, not an integer"),
        (
            f"{PLACES}{SINK}[spark.config]\nspark.a = 1\nspark.b = [1]",
            "line 7: spark.config.spark.b must be text, a number, or true or false, not an array",
        ),
        # an unknown word is named with those that are allowed
        (f'{PLACES}trigger = "availablenow"', f'line 3: {TRIGGERS}, not "availablenow"; did you mean available_now?'),
        (f'{PLACES}trigger = "10 parsecs"', f'line 3: {TRIGGERS}, not "10 parsecs"'),
        (f'{PLACES}trigger = "0 seconds"', f'line 3: {TRIGGERS}, not "0 seconds"'),
        (f'{PLACES}[parse]\nformat = "xml"', f'line 4: parse.format must be one of {FORMATS}, not "xml"'),
        (
            f'{PLACES}{PARSE}on_error = "dql"',
            'line 6: parse.on_error must be one of dlq, skip, fail, not "dql"; did you mean dlq?',
        ),
        # what does not go together is named with its line
        (f'{PLACES}{SINK}delta = "d"', "line 5: two sinks, sink.parquet and sink.delta: a pipeline has one"),
        (
            f'{PLACES}[sink]\npartition_by = ["a"]\nbuffer = "b"',
            "line 4: sink.partition_by goes with parquet or delta or iceberg, not with buffer",
        ),
        (
            f'{PLACES}[sink]\niceberg = "a.b.c"\n[sink.options]',
            "line 5: sink.options goes with parquet or delta or buffer, not with iceberg",
        ),
        (
            f'{PLACES}{PARSE}[[process]]\nfunction = "a:b"\nbefore_parse = true\nschema = "a int"',
            "line 9: process.schema is of columns, and there are none before [parse]: leave it out, or parse before",
        ),
        (
            f'{PLACES}[[process]]\nfunction = "a:b"\nschema = "a int"',
            "line 5: process.schema is of columns, and there are none before [parse]: leave it out, or parse before",
        ),
        (
            f'process = ["{MODULE}:enrich", {{function = "{MODULE}:enrich", before_parse = true}}]\n{PLACES}{PARSE}',
            "line 1: process.before_parse = true comes after a function that runs after [parse]: put it first",
        ),
        # what is no TOML has the line that tomllib names
        ("source = 'a'\nsource = 'b'", "line 2: this is no TOML: Cannot overwrite a value"),
        ("source = 'a'\n\n= 5", "line 3: this is no TOML: Invalid statement"),
        ("source = 'a'\ncheckpoint = '''b\n\n", "line 3: this is no TOML: Expected \"'''\""),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_what_is_allowed_or_was_meant(
    folder: Path, text: str, problem: str
) -> None:
    assert mistake(folder, text) == problem


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("enrich", 'must be "module:function"'),
        ("a b:c", 'must be "module:function"'),
        ("no_such_module_at_all:f", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        (f"{MODULE}:enrch", "cannot be imported: there is no enrch in it; did you mean enrich?"),
        (f"{MODULE}:Names.lower", "cannot be imported: there is no lower in it"),
        (f"{MODULE}:number", "must be a function, not int"),
        ("broken_of_a_pipeline_file:f", "cannot be imported: ZeroDivisionError: division by zero"),
        ("leaving_of_a_pipeline_file:f", "cannot be imported: SystemExit: 3"),
        (
            "typo_of_a_pipeline_file:f",
            "cannot be imported: SyntaxError: '(' was never closed (typo_of_a_pipeline_file.py, line 1)",
        ),
    ],
)
@pytest.mark.parametrize("place", ["[sink]\nfunction", "[sink]\nparquet = 'a'\n[[process]]\nfunction"])
def test_a_function_that_is_none_is_named_with_its_line(folder: Path, place: str, named: str, problem: str) -> None:
    (folder / "broken_of_a_pipeline_file.py").write_text("1 / 0")
    (folder / "leaving_of_a_pipeline_file.py").write_text("raise SystemExit(3)")
    (folder / "typo_of_a_pipeline_file.py").write_text("f(")
    text = f'{PLACES}{place} = "{named}"'
    table = "process" if "process" in place else "sink"
    assert mistake(folder, text) == f'line {text.count(chr(10)) + 1}: {table}.function "{named}" {problem}'


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a = " + "{a=" * 50_000, "a = " + "[" * 2_000 + "]" * 2_000])
def test_what_is_nested_too_deep_is_said(folder: Path, text: str) -> None:
    (folder / "pipeline.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"pipeline\.toml: .* nested too deep$"):
        load_pipeline(folder / "pipeline.toml")


def test_a_number_beyond_all_measure_is_said(folder: Path) -> None:
    assert mistake(folder, "trigger = " + "9" * 10_000).startswith("line 1: this is no TOML: Exceeds the limit")


def test_what_is_not_utf8_is_said_with_its_line(folder: Path) -> None:
    (folder / "pipeline.toml").write_bytes(b"source = 'a'\ncheckpoint = '\xff'")
    with pytest.raises(InvalidInput, match=r"pipeline\.toml, line 2: this is no TOML: it is not UTF-8$"):
        load_pipeline(folder / "pipeline.toml")


def test_a_file_that_cannot_be_read_is_said_to_be_absent_or_why(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "typo.toml", f"{tmp_path / 'typo.toml'}: there is no such file"),
        (tmp_path, f"{tmp_path} cannot be read: it is a directory, and not a file"),
        (tmp_path / ("a" * 300), f"{tmp_path / ('a' * 300)} cannot be read: File name too long"),
    ):
        with pytest.raises(InvalidInput) as caught:
            load_pipeline(path)
        assert str(caught.value) == problem


def test_what_the_pipeline_itself_refuses_is_said_with_the_file(folder: Path) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(InvalidInput) as caught:
        load(folder, f'source = "memory://a"\ncheckpoint = "b"\n{SINK}').pipeline()
    assert str(caught.value).startswith(f"{folder / 'pipeline.toml'}: source cannot be 'memory://a'")


def test_the_command_says_a_mistake_in_one_line(folder: Path) -> None:
    (folder / "pipeline.toml").write_text('sorce = "a"')
    done = run("run", str(folder / "pipeline.toml"))
    problem = f"penstock: {folder / 'pipeline.toml'}, line 1: unknown key sorce; did you mean source?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)


GET_JAVA = (
    "To get it: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless "
    "(Fedora), or brew install openjdk@17 (macOS); then set JAVA_HOME if it is not on the PATH.\n"
)


def test_the_command_says_how_to_get_java_where_it_is_missing(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(PLACES + SINK)
    nowhere, word = str(folder / "nowhere"), str(folder / "pipeline.toml")
    done = run("run", word, JAVA_HOME=nowhere)
    problem = f"penstock: Java was not found in JAVA_HOME ({nowhere}), and Spark needs 17 or newer. {GET_JAVA}"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)
    done = run("run", word, JAVA_HOME="", PATH=nowhere)
    problem = f"penstock: Java was not found on the PATH, and Spark needs 17 or newer. {GET_JAVA}"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)


def test_the_command_says_how_to_get_java_where_it_is_too_old(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(PLACES + SINK)
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    done = run("run", str(folder / "pipeline.toml"), JAVA_HOME=str(folder))
    problem = f"penstock: Java 11 ({java}) is too old for Spark, which needs 17 or newer. {GET_JAVA}"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)


def test_the_advice_is_that_of_the_script() -> None:
    script = (ROOT / "scripts" / "check-java").read_text()
    advice = " ".join(line.removeprefix('echo "').removesuffix('"') for line in script.splitlines()[-2:])
    assert advice + "\n" == GET_JAVA


def test_the_command_says_how_to_get_pyspark_where_it_is_missing(folder: Path) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from penstock.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "run", "x.toml"], capture_output=True, text=True, check=False)
    problem = "penstock: PySpark is not installed: pip install 'penstock[spark]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)


def test_the_command_loads_no_spark_for_its_other_words() -> None:
    code = "import sys, penstock.cli.app; print(*(name for name in sys.modules if name.startswith('pyspark')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


KEYS = st.sampled_from(["plain", "'with.dot'", '"with \\" quote"', '"a]b"', "da-sh", "d.o.t", 'd . "o" . x'])
VALUES = st.sampled_from(
    [
        "1",
        "2026-01-01 10:00:00  # [no.table]",
        "'[a]'",
        '"= \\" #"',
        '"""\n[no]\nkey = 1 \\""" x\n"""""',
        "'''\n[[no]]\n'''''",
        "[ ]",
        "[1, [2, '],'], # ]\n  3,\n]",
        "{a = 1, b.c = [\n'}'\n], 'd e' = {}}",
        "[\n  {a = 1},\n\n  {a = 2, b = [{c = 3}]},\n]",
    ]
)
LINES = st.lists(st.tuples(KEYS, VALUES, st.sampled_from(["\n", "\n\n", "\r\n", "  # [x] y = 1\n"])), max_size=4)
HEADERS = st.sampled_from(["[{}]", "[[{}]]", "[ {} . sub ]", "[[{}.sub]]", "[\"{}\".x.'y']"])


def paths(content: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key and element of what `tomllib` read."""
    yield at
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from paths(value, (*at, key))


@given(LINES, st.lists(st.tuples(HEADERS, st.sampled_from(["t", "u"]), LINES), max_size=4))
def test_every_key_of_every_file_is_found_on_a_line_that_has_it(
    top: list[tuple[str, str, str]], tables: list[tuple[str, str, list[tuple[str, str, str]]]]
) -> None:
    written = [*(f"{key} = {value}{end}" for key, value, end in top)]
    for header, name, lines in tables:
        written += [f"{header.format(name)} # [c]\n", *(f"\t{key} = {value}{end}" for key, value, end in lines)]
    text = ""
    for piece in written:  # what would make a key come twice is left out
        try:
            tomllib.loads(text + piece)
        except tomllib.TOMLDecodeError:
            continue
        text += piece
    by_number = text.split("\n")
    for path in paths(tomllib.loads(text)):
        last = path[-1] if path else ""
        assert isinstance(last, int) or last.replace('"', '\\"') in by_number[line_of(text, path) - 1]
