"""Which task of a job a process works for."""

from __future__ import annotations

from pyspark import TaskContext


def task_number() -> int:
    """The number of this task in its job; 0 outside of one."""
    context = TaskContext.get()
    return context.partitionId() if context else 0
