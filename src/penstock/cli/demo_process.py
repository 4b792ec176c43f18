"""What the demo's pipeline does with events, on Spark's executors: a function of columns, like a user's."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa


def add_service(events: pa.RecordBatch) -> pa.RecordBatch:
    """Add the service that an event came from, and set apart those with a number below 0."""
    import pyarrow.compute as pc

    parts: Any = pc.split_pattern(cast("pa.StringArray", events.column("event")), "/")
    is_wrong = pc.less(events.column("number"), pa.scalar(0))
    wrong: Any = pc.if_else(is_wrong, "number is below 0", pa.scalar(None, pa.string()))
    return events.append_column("service", pc.list_element(parts, 1)).append_column("_error", wrong)
