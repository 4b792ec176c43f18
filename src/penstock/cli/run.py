"""`penstock run`: a pipeline on Spark, from a file that describes it."""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import counted, say
from penstock.cli.starting import Starting
from penstock.core import escaping
from penstock.errors import PenstockError
from penstock.spark import OLDEST_JAVA, find_java

if TYPE_CHECKING:
    from penstock.spark import Finding, PipelineFile

_GET_JAVA = (  # as in scripts/check-java, which an installed package does not have
    "To get it: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless "
    "(Fedora), or brew install openjdk@17 (macOS); then set JAVA_HOME if it is not on the PATH."
)


def run_command(
    file: Annotated[str, typer.Argument(metavar="PIPELINE.TOML", help="The file that describes the pipeline.")],
    check: Annotated[
        bool, typer.Option("--check", help="Check everything but run nothing: the file, its source, tables, Java.")
    ] = False,
) -> None:
    """Run a pipeline on Spark, until it has done what its trigger says, or until Ctrl-C or SIGTERM.

    With --check it starts no Spark, and creates nothing; exit status 1: the pipeline would not run.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise PenstockError("PySpark is not installed: pip install 'penstock[spark]'")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(escaping)  # for what other libraries log
    logging.getLogger("penstock").setLevel(logging.WARNING if check else logging.INFO)
    # While Spark starts no block is under way yet: it can end at any moment. `Pipeline.run` has its own handlers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Starting() as starting:
        starting.say(f"reading {file}", logged=False)
        # Here and not above: the other commands need no Spark, and do not wait for it to load.
        from penstock.spark import load_pipeline

        described = load_pipeline(file)
        if check:
            findings = list(_findings(described))
        else:
            starting.say("looking for Java", logged=False)
            check_java()
            pipeline = described.pipeline()
            starting.say("starting Spark")
            session = described.session()
    if check:
        _show(findings)
        return
    try:
        summary = pipeline.run(session, trigger=described.trigger)
    finally:
        session.stop()
    say(
        f"{counted(summary.rows, 'row')}, {counted(summary.bytes, 'byte')}, "
        f"{counted(summary.dead_letters, 'dead letter')}, {counted(summary.blocks, 'block')}, {summary.seconds:.1f} s"
    )


def _findings(described: PipelineFile) -> Iterator[Finding]:
    from penstock.spark import Finding, check_pipeline

    try:
        yield Finding(True, f"Java {check_java()}, PySpark {version('pyspark')}, Python {platform.python_version()}")
    except PenstockError as error:
        yield Finding(False, str(error))
    yield from check_pipeline(described)


def _show(findings: list[Finding]) -> None:
    marks = {True: "ok", False: "WRONG", None: "not checked"}
    for found in findings:
        say(f"{marks[found.is_right]:<12} {found.text}")
    wrong = sum(found.is_right is False for found in findings)
    if wrong:
        say(f"{counted(wrong, 'problem')}: it would not run")
        raise typer.Exit(1)
    say("it would run")


def check_java() -> str:
    """Return the version of the Java that Spark would start; raise `PenstockError` where it is missing or too old.

    The error says how to get it.
    """
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise PenstockError(f"Java was not found {where}, and Spark needs {OLDEST_JAVA} or newer. {_GET_JAVA}")
    if java.version is not None and java.version < OLDEST_JAVA:
        raise PenstockError(
            f"Java {java.version} ({java.path}) is too old for Spark, which needs {OLDEST_JAVA} or newer. {_GET_JAVA}"
        )
    return "of an unknown version" if java.version is None else str(java.version)
