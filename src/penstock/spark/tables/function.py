"""A function of the user's as a sink: only it knows whether it has a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import DataFrame

from penstock.engine import Delivery, wait_for_delivery
from penstock.errors import SinkFailed
from penstock.spark.tables.contract import AtomicSink, BlockId

SinkFunction: TypeAlias = Callable[[DataFrame, str], Delivery]


class FunctionSink(AtomicSink):
    """A function that gets each block's rows and its name."""

    def __init__(self, fn: SinkFunction) -> None:
        self._fn = fn

    def __str__(self) -> str:
        return f"to({getattr(self._fn, '__qualname__', self._fn)})"

    def write(self, rows: DataFrame, block: BlockId) -> None:
        """Hand the block over, and wait for what the function returned. Raises `SinkFailed` if that is no delivery."""
        returned = self._fn(rows, block.name)
        try:
            wait_for_delivery(returned)
        except Exception as error:
            raise SinkFailed(
                f"{self}, given the block {block.name}, did not deliver it, and nothing of it is acked: "
                f"{type(error).__name__}: {error}"
            ) from error
