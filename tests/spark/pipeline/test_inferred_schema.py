"""`parse(..., schema="infer")`: what is looked at, what is written down, and what a later run reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import ParseFormat, PayloadSchemas
from penstock.errors import CorruptData, InvalidInput
from penstock.spark import Pipeline
from penstock.spark.pipeline.block_plans import SmallFiles, open_files
from penstock.spark.pipeline.inferred_schema import find_schema
from penstock.spark.source.options import ReadOptions
from tests.support.pipeline_places import Places

EVENTS = [b'{"id": 1, "name": "a"}', b"no JSON", b'{"id": 2.5, "tags": ["x"], "at": null}']
DDL = "id double, name string, tags array<string>, at string"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def files_of(places: Places) -> SmallFiles:
    return open_files(None, str(places.checkpoint))


def found(places: Places, files: SmallFiles | None = None, **options: str) -> str | None:
    """The columns, as DDL; None where there is nothing to look at."""
    given = ReadOptions.of({"path": str(places.events), **options})
    schema = find_schema(files or files_of(places), "cp", given, ParseFormat.JSON, PayloadSchemas(), lambda _: False)
    return None if schema is None else ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema)


def test_the_columns_of_the_first_events_are_written_down_once_and_read_later(places: Places) -> None:
    places.put(EVENTS)
    assert found(places) == DDL
    written = json.loads((places.checkpoint / "penstock" / "schema.json").read_bytes())
    assert written["ddl"] == DDL
    assert "3 payloads, 1 of them not parsed" in written["sample"][0]
    places.put([b'{"other": true}'])
    assert found(places) == DDL


def test_looking_claims_nothing_and_creates_no_group(places: Places) -> None:
    places.put(EVENTS)
    found(places, group="new")
    assert places.backlog.epoch() == 0


def test_a_group_looks_at_what_it_has_not_acked(places: Places, spark: Any) -> None:
    places.put([b'{"old": 1}'])
    Pipeline(places.events, places.checkpoint).parse("json", "old int").to(_nowhere).run(spark, "available_now")
    assert found(places) is None
    places.put([b'{"new": 1}'])
    assert found(places) == "new bigint"


def _nowhere(rows: Any, _block: str) -> None:
    rows.count()


def test_where_another_driver_was_faster_its_columns_count(places: Places) -> None:
    places.put(EVENTS)
    other = open_files(None, str(places.checkpoint))

    class Slower:
        """Files that another driver writes just before this one does."""

        def read(self, path: str) -> bytes | None:
            return other.read(path)

        def write_new(self, path: str, data: bytes) -> bool:
            schema = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
            other.write_new(path, json.dumps({"schema": schema}).encode())
            return other.write_new(path, data)

        def names(self, folder: str) -> list[str]:
            return other.names(folder)

        def remove(self, path: str) -> None:
            other.remove(path)

    assert found(places, Slower()) == "n bigint"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema": 1}', b'{"schema": {"type": "struct"}}', b"{", b"\xff"])
def test_a_file_that_is_no_schema_is_named(places: Places, content: bytes) -> None:
    files_of(places).write_new("penstock/schema.json", content)
    with pytest.raises(CorruptData, match=r"cp/penstock/schema.json is no schema .* Remove it"):
        found(places)


def test_events_of_which_none_can_be_parsed_are_an_error_that_says_why(places: Places) -> None:
    places.put([b"no JSON", b"[1]"])
    with pytest.raises(InvalidInput, match=r"(?s)no columns can be inferred .*Give parse a schema"):
        found(places)
    assert not places.checkpoint.exists()


def test_a_batch_that_cannot_be_read_is_left_out_where_the_run_sets_it_aside(places: Places) -> None:
    places.put(EVENTS, EVENTS)
    places.object_of(0).write_bytes(b"broken")
    with pytest.raises(CorruptData):
        found(places)
    assert found(places, onCorruptBatch="dlq") == DDL


def test_where_events_are_changed_before_they_are_parsed_nothing_can_be_inferred(places: Places) -> None:
    with pytest.raises(InvalidInput, match="process comes before parse"):
        places.pipeline().process(lambda batch: batch).parse("json", "infer")
    with pytest.raises(InvalidInput, match="beside the checkpoint"):
        Pipeline(places.events).parse("json", "infer")


def test_available_now_with_nothing_there_does_nothing_and_returns(places: Places, spark: Any) -> None:
    pipeline = places.pipeline().parse("json", "infer").to_parquet(places.table)
    assert pipeline.run(spark, "available_now").blocks == 0
    assert not places.table.exists()
    places.put([b'{"id": 1}'])
    assert pipeline.run(spark, "available_now").rows == 1
    assert places.rows() == [{"id": 1}]


def test_a_run_waits_for_the_first_events_and_can_be_stopped_meanwhile(places: Places) -> None:
    waits: list[float] = []

    def should_wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 2:
            places.put(EVENTS)
        return True

    options = ReadOptions.of({"path": str(places.events), "pollInterval": "0.25"})
    schema = find_schema(files_of(places), "cp", options, ParseFormat.JSON, PayloadSchemas(), should_wait)
    assert schema is not None
    assert waits == [0.25, 0.25]
