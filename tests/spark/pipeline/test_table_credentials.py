"""No credential of a table shows in a pipeline's text, its errors or its logs, whatever the store answers."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from penstock import open_store
from penstock.errors import PenstockError
from penstock.spark import Pipeline
from tests.support.pipeline_places import Places
from tests.support.servers import S3Server

KEY, SECRET, TOKEN = "HUNTER-key-id", "HUNTER/secret+key=", "HUNTER-session"
"""Each has HUNTER in it, and nothing that is shown may."""

KINDS = ["parquet", "delta", "iceberg", "letters"]

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


def into(kind: str, pipeline: Pipeline, bucket: str, server: S3Server, top: Path) -> Pipeline:
    """The pipeline, into a table in a bucket."""
    secrets = {"access_key_id": KEY, "secret_access_key": SECRET, "session_token": TOKEN}
    options = {"endpoint": server.endpoint, "allow_http": "true", "region": "us-east-1", **secrets}
    if kind == "parquet":
        return pipeline.to_parquet(f"s3://{bucket}/table", options=options)
    if kind == "delta":
        return pipeline.to_delta(f"s3://{bucket}/table", options=options)
    if kind == "letters":
        return pipeline.dead_letters(f"s3://{bucket}/letters", options).to_parquet(top / "table")
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{top}/catalog.db",
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": server.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.session-token": TOKEN,
    }
    return pipeline.to_iceberg("lake.web.table", catalog)


def remove(server: S3Server, bucket: str) -> None:
    """Remove a bucket with all that is in it."""
    store = open_store(f"s3://{bucket}", **server.options)
    assert all(result.error is None for result in store.delete([found.path for found in store.list_objects()]))
    server.delete_bucket(bucket)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_shows_where_the_bucket_is_missing_at_first_or_later(
    kind: str,
    spark: Any,
    s3_server: S3Server,
    fresh_name: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places = Places(tmp_path)
    places.put([b'{"id": 1}', b"{"])
    s3_server.create_bucket(fresh_name)

    def removed_by_a_task(batch: Any) -> Any:
        remove(s3_server, fresh_name)
        return batch

    parsed = Pipeline(places.events, places.checkpoint).parse("json", "id bigint")
    shown = []
    with caplog.at_level(logging.DEBUG):
        for pipeline in (
            into(kind, parsed, "missing", s3_server, tmp_path),
            into(kind, parsed.process(removed_by_a_task), fresh_name, s3_server, tmp_path),
        ):
            with pytest.raises(PenstockError, match=r"(?i)no.?such.?bucket|bucket does not exist") as caught:
                pipeline.run(spark, "available_now")
            shown += [repr(pipeline), "".join(traceback.format_exception(caught.value)), repr(caught.value)]
    assert "HUNTER" not in "\n".join([*shown, caplog.text, *capfd.readouterr()])
