"""From Spark's exceptions back to ours: class and cause are lost on the way, the text is not."""

from __future__ import annotations

import re
import sys

from penstock import errors
from penstock.errors import EngineError, Fenced, PartitionOutOfRange, PenstockError

# A message goes on until the trace does: an empty line, or what Python, Java and Spark put behind it.
_END = r"\s*$|Traceback |The above exception|During handling|JVM stacktrace|\s+at |\s*SQLSTATE|=== "
_OURS = re.compile(rf"^.*?\bpenstock\.errors\.(\w+): (.*(?:\n(?!{_END}).*)*)", re.MULTILINE)
# Of the modules that Penstock needs: one that is missing for a user's own function is not meant.
_NO_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '(penstock|pyspark|pyarrow|msgspec|obstore|prometheus_client)'"
)
_JVM_TRACE = "\n\nJVM stacktrace:"
_TWO_DRIVERS = "CONCURRENT_STREAM_LOG_UPDATE"


def text_of(error: BaseException) -> str:
    r"""What an exception says, without the trace of the JVM that those of Spark Connect have behind it.

    >>> text_of(RuntimeError("no such column\n\nJVM stacktrace:\n\tat org.apache.spark"))
    'no such column'
    """
    return str(error).partition(_JVM_TRACE)[0].rstrip()


def our_error(error: BaseException) -> PenstockError | None:
    """The error of ours that an exception is, or has in its text; None where it has none.

    >>> our_error(RuntimeError("Traceback ... penstock.errors.NotFound: the data of sequence 3 is gone"))
    NotFound('the data of sequence 3 is gone')
    """
    if isinstance(error, PenstockError):
        return error
    text = f"{getattr(error, '_stackTrace', '')}\n{error}"  # where a task of a write failed, only the trace says why
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PenstockError) and kind is not PartitionOutOfRange:
            return kind(message.strip())
    if _TWO_DRIVERS in text:
        return Fenced(
            "another driver runs a query with this checkpoint at the same time; one of the two may go on, or a restart"
        )
    missing = _NO_MODULE.search(text)
    if missing is not None:
        return EngineError(
            f"the Python of Spark's workers has no module {missing[1]!r}: it is not the one that runs this, "
            f"{sys.executable}. Set PYSPARK_PYTHON to a Python that has Penstock, on every machine of a cluster"
        )
    return None
