"""How a run takes the ends of its query: a session that a test stands in for, and no Spark."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.errors import EngineError
from penstock.spark.pipeline.plan import Plan, Target
from penstock.spark.pipeline.run import PipelineRun
from penstock.spark.pipeline.triggers import spark_trigger
from penstock.spark.tables.function import FunctionSink

NOT_CONNECTED = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query:
    """A query that has ended, or that fails."""

    def __init__(self, problem: str | None = None) -> None:
        self._problem = problem

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802  Spark's name
        if self._problem is not None:
            raise StreamingQueryException(self._problem)
        return True

    def stop(self) -> None:
        pass


class Session:
    """Stands where a session and its builders do, and starts one query after another."""

    def __init__(self, *queries: Query) -> None:
        self.to_start = list(queries)

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **named: object) -> Any:
        return self

    def start(self) -> Query:
        return self.to_start.pop(0)


def run(session: Any, trigger: str = "asap") -> None:
    sink = Target("to(nothing)", lambda _spark: FunctionSink(lambda _rows, _block: None))
    PipelineRun(Plan("/data/events", "/data/checkpoint", sink=sink), session, spark_trigger(trigger)).run()


def test_an_available_now_query_that_another_caller_stopped_did_not_end_well() -> None:
    with pytest.raises(EngineError, match="stopped by another caller before it was through"):
        run(Session(Query()), "available_now")


def test_a_start_for_which_no_python_worker_connected_in_time_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    session = Session(Query(NOT_CONNECTED), Query())
    run(session)
    assert session.to_start == []
    assert "starting the query again" in caplog.text


def test_a_start_that_fails_so_each_time_is_an_error_that_says_why() -> None:
    session = Session(*[Query(NOT_CONNECTED)] * 10)
    with pytest.raises(EngineError, match=r"waited 10 seconds for a Python worker .*: run again") as caught:
        run(session)
    assert isinstance(caught.value.__cause__, StreamingQueryException)
    assert len(session.to_start) == 7


@pytest.mark.parametrize("problem", ["the checkpoint is corrupt", "penstock.errors.Fenced: another has taken over"])
def test_any_other_error_is_raised_at_once(problem: str) -> None:
    session = Session(Query(problem), Query())
    with pytest.raises(Exception, match=problem.rpartition(": ")[2]):
        run(session)
    assert len(session.to_start) == 1
