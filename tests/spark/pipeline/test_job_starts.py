"""How a block's job starts on a busy machine: a session that a test stands in for, and no Spark."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from penstock.core import Backoff
from penstock.errors import EngineError
from penstock.spark.pipeline import jobs
from penstock.spark.pipeline.jobs import write_files
from penstock.spark.pipeline.tasks import TaskResult
from penstock.spark.source.partitions import BatchRun

NOT_CONNECTED = "Job aborted due to stage failure: Python worker failed to connect back. at org.apache.spark"
DONE = TaskResult(rows=3)


class Session:
    """Stands where a session, its context and an RDD do; each job gives the next answer, or raises it."""

    def __init__(self, *answers: TaskResult | str) -> None:
        self.answers = list(answers)

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **named: object) -> Any:
        return self

    def collect(self) -> list[TaskResult]:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return [answer]


def run(session: Session) -> list[TaskResult]:
    nothing: Any = None  # the stand-in runs no task
    return write_files(session, nothing, [BatchRun([])])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "Backoff", functools.partial(Backoff, sleep=lambda _: None))


def test_a_job_for_which_no_python_worker_connected_in_time_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    session = Session(NOT_CONNECTED, DONE)
    assert run(session) == [DONE]
    assert "the job is started again" in caplog.text


def test_a_job_that_fails_so_each_time_is_an_error_that_says_why() -> None:
    session = Session(*[NOT_CONNECTED] * 10)
    with pytest.raises(EngineError, match=r"waited for a Python worker to start.*: run again") as caught:
        run(session)
    assert NOT_CONNECTED in str(caught.value.__cause__)
    assert len(session.answers) == 7


@pytest.mark.parametrize("problem", ["the disk is full", "penstock.errors.NotFound: the data is gone"])
def test_any_other_error_is_raised_at_once(problem: str) -> None:
    session = Session(problem, DONE)
    with pytest.raises(RuntimeError, match=problem.rpartition(": ")[2]):
        run(session)
    assert len(session.answers) == 1


def test_a_block_without_batches_needs_no_job() -> None:
    assert write_files(Session(), None, []) == []  # type: ignore[arg-type]  # no task runs
