"""Sessions of both kinds, classic and Spark Connect: their cores, their workers' Python, their first settings."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Any

from pyspark.sql import SparkSession

from penstock.core import get_logger
from penstock.spark.versions import VERSION

SESSION_DEFAULTS = {
    "spark.python.authenticate.socketTimeout": "60s",  # 15 s otherwise, and a busy machine starts a Python slowly
}
"""Settings of a session that Penstock starts, unless its user has given them."""

_CONNECT = "pyspark.sql.connect."
_CORES_OF_CONNECT = 32  # more tasks than cores cost little; too few leave cores idle
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,.*)?\])?$")
_PYTHON_ENV = "PYSPARK_PYTHON"
_PYTHON_CONF = "spark.pyspark.python"
_HIDDEN_OPTIONS, _HIDDEN_BY_DEFAULT = "spark.sql.redaction.options.regex", "(?i)url"
_NOT_CONNECTED = ("Python worker failed to connect back", "waiting for the Python worker to connect back")

_log = get_logger(__name__)


def is_connect(thing: object) -> bool:
    """Whether a session, or a DataFrame, is one of Spark Connect."""
    return any(kind.__module__.startswith(_CONNECT) for kind in type(thing).__mro__)


def is_session(thing: object) -> bool:
    """Whether this is a Spark session, of either kind."""
    if isinstance(thing, SparkSession):
        return True
    return is_connect(thing) and type(thing).__name__ == "SparkSession"


def cores_of(spark: SparkSession) -> int:
    """How many tasks the session runs at once. Spark Connect tells it of a local master alone: else a guess, 32."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    parallelism = _setting(spark, "spark.default.parallelism") or ""
    if parallelism.isdecimal() and int(parallelism):
        return int(parallelism)
    master = _LOCAL.fullmatch(_setting(spark, "spark.master") or "")
    if master is None:
        return _CORES_OF_CONNECT
    return int(master[1]) if (master[1] or "").isdecimal() else (os.cpu_count() or 1) if master[1] else 1


def use_this_python(spark: SparkSession | None = None, *, master: str = "local") -> None:
    """Have the workers of a local session run the Python that runs this, unless another one is chosen.

    Without it they run the `python3` of the PATH, which is another one where a virtualenv is not activated. Before
    there is a session, for one with this master: sets the variable `PYSPARK_PYTHON`. On a cluster nothing is changed:
    the paths of this machine mean nothing there. Logs a warning where the workers of a local session run another one,
    be it because it is chosen, or because a server of Spark Connect has started already.
    """
    if spark is None:
        if _LOCAL.fullmatch(master):
            os.environ.setdefault(_PYTHON_ENV, sys.executable)
    elif is_connect(spark):
        _check_connect()
    else:
        _use_in_context(spark.sparkContext)


def hide_credentials(spark: SparkSession) -> None:
    """Have Spark hide options that may be credentials, where it prints a query's options with its errors (4.0, 4.1).

    Unless the session's user has changed which options are hidden.
    """
    if VERSION < (4, 2) and _setting(spark, _HIDDEN_OPTIONS) in {None, _HIDDEN_BY_DEFAULT}:
        spark.conf.set(_HIDDEN_OPTIONS, f"{_HIDDEN_BY_DEFAULT}|key|secret|token|sas|password|credential")


def is_slow_start(error: BaseException) -> bool:
    """Whether Spark gave up waiting for a Python worker to start, so that another try may do.

    The limit is 10 seconds in Spark 3.5 to 4.3, and is no setting. It is for workers that are not forked by Spark's
    daemon: those that plan a stream, and all of them where `spark.python.use.daemon` is false.
    """
    text = str(error)
    return any(sign in text for sign in _NOT_CONNECTED)


def _use_in_context(context: Any) -> None:
    if not _LOCAL.fullmatch(context.master):
        return
    if os.environ.get(_PYTHON_ENV) is None and context.getConf().get(_PYTHON_CONF) is None:
        # Functions and data sources are sent to the JVM with it.
        context.pythonExec = sys.executable
    elif not _is_this(context.pythonExec):
        _log.warning(
            "Spark's workers run %s (PYSPARK_PYTHON or spark.pyspark.python), and this is %s: Penstock and PyArrow "
            "have to be installed there too",
            context.pythonExec,
            sys.executable,
        )


def _check_connect() -> None:
    # Its server reads the variable when it starts, and no setting. `remote("local")` starts one here, with this mark.
    python = os.environ.get(_PYTHON_ENV, "python3")
    if "SPARK_LOCAL_REMOTE" in os.environ and not _is_this(python):
        _log.warning(
            "Spark's workers run %s, and this is %s: set PYSPARK_PYTHON to it before the session is made, or install "
            "Penstock and PyArrow there too",
            shutil.which(python) or python,
            sys.executable,
        )


def _is_this(python: str) -> bool:
    """Whether an executable is of the installation that runs this: `python` and `python3` are side by side there."""
    found = shutil.which(python)
    return found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)


def _setting(spark: SparkSession, name: str) -> str | None:
    return spark.conf.get(name, None)
