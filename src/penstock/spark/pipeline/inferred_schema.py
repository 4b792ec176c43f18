"""`parse(..., schema="infer")`: the columns of the first events that wait, written down beside the checkpoint.

Every later run reads what is written there: the columns stay, whatever comes. To change them, edit or remove the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.buffer import BufferQueue, decode_object, read_object
from penstock.core import get_logger
from penstock.engine import ParseFormat, PayloadSchemas, sample_schema
from penstock.errors import CorruptData, InvalidInput, NotFound
from penstock.records import join_records, values_to_arrow
from penstock.spark.pipeline.block_plans import SmallFiles
from penstock.spark.source.options import OnCorruptBatch, ReadOptions

INFER = "infer"
_PATH = "penstock/schema.json"
_MAX_EVENTS = 10_000
_MAX_BATCHES = 20

_log = get_logger(__name__)


def find_schema(
    files: SmallFiles,
    shown_checkpoint: str,
    options: ReadOptions,
    form: ParseFormat,
    payload_schemas: PayloadSchemas,
    should_wait: Callable[[float], bool],
) -> StructType | None:
    """The columns that are written beside the checkpoint, or those of the events that wait, which are written then.

    Where no event waits, `should_wait` is called with the seconds until the next look, and says whether there is to be
    one; None where not. Raises `InvalidInput` where no event of the sample can be parsed, and `CorruptData`.
    """
    found = _read(files, shown_checkpoint)
    while found is None:
        records = _sample(options)
        if records.num_rows:
            found = _infer(files, shown_checkpoint, records, form, payload_schemas)
        elif not should_wait(options.poll_interval):
            return None
    return found


def _infer(
    files: SmallFiles,
    shown_checkpoint: str,
    records: pa.RecordBatch,
    form: ParseFormat,
    payload_schemas: PayloadSchemas,
) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    has_use = form is ParseFormat.AUTO and "headers" in records.schema.names
    sample = sample_schema(
        records.column("value"),
        form,
        payload_schemas=payload_schemas,
        headers=records.column("headers") if has_use else None,
    )
    if not sample.columns:
        raise InvalidInput(f"no columns can be inferred from the first events:\n{sample}\nGive parse a schema")
    schema: StructType = from_arrow_schema(sample.schema)
    place = f"{shown_checkpoint}/{_PATH}"
    content = {"schema": schema.jsonValue(), "ddl": _ddl(schema), "sample": str(sample).splitlines()}
    if not files.write_new(_PATH, json.dumps(content, indent=1).encode()):
        return _read(files, shown_checkpoint) or schema  # another driver was faster
    _log.info("inferred the columns of %s, and wrote them to %s", sample, place)
    return schema


def _read(files: SmallFiles, shown_checkpoint: str) -> StructType | None:
    data = files.read(_PATH)
    if data is None:
        return None
    try:
        return StructType.fromJson(json.loads(data)["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(
            f"{shown_checkpoint}/{_PATH} is no schema that was inferred: {error}. Remove it, and it is inferred again"
        ) from error


def _sample(options: ReadOptions) -> pa.RecordBatch:
    """Records of the first batches that the group has not acked. Claims nothing, and creates no group."""
    store = options.store
    view = BufferQueue(store, options.manifest_path, "consumer").look()
    group = view.groups.get(options.group)
    start = view.first_sequence if group is None else group.acked_through + 1
    records: list[pa.RecordBatch] = []
    count = 0
    for batch in view.entries(start, min(start + _MAX_BATCHES, view.next_sequence)):
        try:
            found = decode_object(store, batch, read_object(store, batch))
        except (NotFound, CorruptData):
            if options.on_corrupt_batch is OnCorruptBatch.FAIL:
                raise
            continue  # the run sets it aside
        records.append(found.slice(0, _MAX_EVENTS - count))
        count += records[-1].num_rows
        if count >= _MAX_EVENTS:
            break
    return join_records(records) if records else values_to_arrow([])


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
