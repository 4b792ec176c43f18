"""The data source through Spark Connect: a real server, in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.spark.versions import HAS_ADMISSION
from tests.support.connect_jobs import run_connect_job

pytestmark = pytest.mark.timeout(600)  # one fixture runs all that the tests look at

MISSPELT = {
    "read": "unknown option 'maxbytespertriger': is 'maxBytesPerTrigger' meant",
    "stream": "unknown option 'maxbytespertriger': is 'maxBytesPerTrigger' meant",
    "write": "unknown option 'compresion': is 'compression' meant",
    "view": "unknown option 'grup': is 'group' meant",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a user of Spark Connect finds."""
    return run_connect_job("tests.spark.source.connect_job", tmp_path_factory.mktemp("connect"))


def test_its_session_is_a_session_whose_cores_are_known_where_it_is_local(found: dict[str, Any]) -> None:
    assert found["kind"].startswith("pyspark.sql.connect")
    assert (found["is_session"], found["cores"]) == (True, 2)


def test_it_writes_and_reads(found: dict[str, Any]) -> None:
    assert found["read"] == found["view"] == ["a", "b", "c"]


def test_its_streams_consume_and_append_each_event_once(found: dict[str, Any]) -> None:
    assert sorted(found["copied"]) == ["a", "a", "b", "c"]
    assert found["queued"] == ([] if HAS_ADMISSION else [1])  # by sequence: earlier versions ack with the next block


def test_map_in_arrow_works_there(found: dict[str, Any]) -> None:
    assert found["mapped"] == 4


@pytest.mark.parametrize("where", ["read", "stream", "write", "view"])
def test_its_errors_have_ours_in_them(found: dict[str, Any], where: str) -> None:
    assert f"InvalidInput: {MISSPELT[where]}" in found["errors"][where]


def test_a_table_is_refused_with_what_works(found: dict[str, Any]) -> None:
    assert "InvalidInput: a buffer cannot be made a table" in found["errors"]["table"]
    assert "use CREATE TEMPORARY VIEW name USING penstock" in found["errors"]["table"]


def test_only_a_session_can_be_registered_with(found: dict[str, Any]) -> None:
    assert found["errors"]["register"] == "register takes a SparkSession, not DataFrame"
