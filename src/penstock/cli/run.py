"""`penstock run`: a pipeline on Spark, from a file that describes it."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import Annotated

import typer

from penstock.cli.output import counted, say
from penstock.core import escaping
from penstock.errors import PenstockError

_OLDEST_JAVA = 17
_GET_JAVA = (  # as in scripts/check-java, which an installed package does not have
    "To get it: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless "
    "(Fedora), or brew install openjdk@17 (macOS); then set JAVA_HOME if it is not on the PATH."
)


def run_command(
    file: Annotated[str, typer.Argument(metavar="PIPELINE.TOML", help="The file that describes the pipeline.")],
) -> None:
    """Run a pipeline on Spark, until it has done what its trigger says, or until Ctrl-C or SIGTERM."""
    if importlib.util.find_spec("pyspark") is None:
        raise PenstockError("PySpark is not installed: pip install 'penstock[spark]'")
    # Here and not above: the other commands need no Spark, and do not wait for it to load.
    from penstock.spark import load_pipeline

    # While Spark starts no block is under way yet: it can end at any moment. `Pipeline.run` has its own handlers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    described = load_pipeline(file)
    check_java()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(escaping)  # for what other libraries log
    logging.getLogger("penstock").setLevel(logging.INFO)
    pipeline = described.pipeline()
    session = described.session()
    try:
        summary = pipeline.run(session, trigger=described.trigger)
    finally:
        session.stop()
    say(
        f"{counted(summary.rows, 'row')}, {counted(summary.bytes, 'byte')}, "
        f"{counted(summary.dead_letters, 'dead letter')}, {counted(summary.blocks, 'block')}, {summary.seconds:.1f} s"
    )


def check_java() -> None:
    """Raise `PenstockError`, saying how to get it, where the Java that Spark would start is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise PenstockError(f"Java was not found {where}, and Spark needs {_OLDEST_JAVA} or newer. {_GET_JAVA}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603  the user's own
    version = re.search(r'version "(\d+)', shown.stdout + shown.stderr)
    if version is not None and int(version[1]) < _OLDEST_JAVA:
        raise PenstockError(
            f"Java {version[1]} ({java}) is too old for Spark, which needs {_OLDEST_JAVA} or newer. {_GET_JAVA}"
        )
