"""A function as a pipeline's sink: what it returns is waited for, or refused, and nothing undelivered is acked."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import Producer
from penstock.errors import EngineError, SinkFailed
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.function import FunctionSink
from tests.support.pipeline_places import Places
from tests.support.waiting import A_WHILE, Background, Gate

BLOCK = BlockId("query", 0, 1)


async def later(_rows: Any, _block: str) -> None:
    """Never run."""


REFUSED: dict[str, Callable[[Any, str], Any]] = {
    "map": lambda rows, _: map(print, [rows]),
    "generator": lambda rows, _: (print(row) for row in [rows]),
    "chain": lambda rows, _: itertools.chain([rows]),
    "coroutine": later,
    "list of coroutines": lambda rows, block: [later(rows, block), later(rows, block)],
    "bool": lambda _rows, _block: True,
    "int": lambda _rows, _block: 3,
    "str": lambda _rows, block: block,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_delivery_is_refused(kind: str) -> None:
    with pytest.raises(
        SinkFailed, match=r"did not deliver it.* it returned a .* What may be returned is None, a WriteHandle"
    ):
        FunctionSink(REFUSED[kind]).write(None, BLOCK)  # type: ignore[arg-type]  # no session is needed


def test_a_future_is_waited_for() -> None:
    gate = Gate()
    with ThreadPoolExecutor(1) as pool:
        writing = Background(lambda: FunctionSink(lambda *_: [pool.submit(gate)]).write(None, BLOCK))  # type: ignore[arg-type]
        gate.wait_for_arrival()
        assert not writing.has_ended_within(A_WHILE)
        gate.open()
        writing.result()


def test_a_future_that_failed_is_raised() -> None:
    future = Future[None]()
    future.set_exception(OSError("the table is gone"))
    with pytest.raises(SinkFailed, match="OSError: the table is gone"):
        FunctionSink(lambda *_: future).write(None, BLOCK)  # type: ignore[arg-type]


def unwritten(rows: Any, _block: str) -> Any:
    return rows.select("value")


def test_a_sink_that_exits_ends_the_run_with_an_error(spark: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put([b"one"])
    with pytest.raises(EngineError, match="a block ended with SystemExit: 3"):
        places.pipeline().to(lambda *_: sys.exit(3)).run(spark, "available_now")
    assert places.queued() == [0]


@pytest.mark.slow
def test_rows_that_are_not_delivered_are_not_acked_and_come_again(spark: Any, tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.put([b"one", b"two"])
    with pytest.raises(SinkFailed, match="it returned a DataFrame, which does not say whether the block is delivered"):
        places.pipeline().to(unwritten).run(spark, "available_now")
    assert places.queued() == [0]
    with Producer(tmp_path / "out") as producer:
        places.pipeline().to(
            lambda rows, _: [producer.produce(bytes(row["value"])) for row in rows.select("value").collect()]
        ).run(spark, "available_now")
        assert places.queued() == []
