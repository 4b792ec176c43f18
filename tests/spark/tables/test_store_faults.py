"""A bucket that fails at each request of a block in turn: after another run each row is in the table once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from penstock.errors import PenstockError
from penstock.spark.tables.contract import Table
from penstock.spark.tables.opening import TableKind, open_any_table
from tests.support.faulty_proxy import FaultyProxy, Wrong, faulty_proxy
from tests.support.plain_tables import QUERY, staged
from tests.support.servers import BUCKET, S3Server

Open: TypeAlias = Callable[[S3Server], Table]

MAX_REQUESTS = 100  # of a block; it has about thirty
LASTING = 1000  # requests, one after the other: more than any client asks again


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server) as proxy:
        yield proxy


def opener(kind: TableKind, top: str, catalog_file: Path) -> Open:
    """How a table is opened that is in a bucket; the catalog of an Iceberg table is on disk."""

    def open_it(server: S3Server) -> Table:
        options = {name: str(value).lower() for name, value in server.options.items()}
        if kind is not TableKind.ICEBERG:
            return open_any_table(None, f"s3://{BUCKET}/{top}", kind=kind, options=options | {"max_retries": "1"})
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{catalog_file}",
            "warehouse": f"s3://{BUCKET}/{top}",
            "s3.endpoint": server.endpoint,
            "s3.region": options["region"],
            "s3.access-key-id": options["access_key_id"],
            "s3.secret-access-key": options["secret_access_key"],
        }
        return open_any_table(None, "lake.web.clicks", kind=kind, catalog=catalog)

    return open_it


def next_block(table: Table) -> int:
    """Write the next block, as a driver does that starts: from the position on."""
    position = table.position(QUERY)
    first = 0 if position is None else position.end
    assert staged(table, [{"id": first, "event": "a"}], first).commit()
    return first


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, pytest.param(LASTING, marks=pytest.mark.chaos)], ids=["single", "lasting"])
@pytest.mark.parametrize("wrong", list(Wrong))
@pytest.mark.parametrize(
    "kind",
    [TableKind.PARQUET, *(pytest.param(kind, marks=pytest.mark.chaos) for kind in TableKind if kind != "parquet")],
)
def test_whichever_request_of_a_block_fails_each_row_is_there_once_after_another_run(
    kind: TableKind, wrong: Wrong, times: int, proxy: FaultyProxy, tmp_path: Path, fresh_name: str
) -> None:
    through, directly = proxy.in_front, proxy.server
    stopped = 0
    for number in range(MAX_REQUESTS):
        # A table of its own each time: with its commits the requests of a block become more.
        open_it = opener(kind, f"{fresh_name}/{number}", tmp_path / f"{number}.db")
        next_block(open_it(directly))
        proxy.arm(wrong, number, times)
        try:
            next_block(open_it(through))
        except (PenstockError, OSError):  # which a task raises; a pipeline makes `SinkFailed` of it
            stopped += 1
        was_met = proxy.disarm()
        next_block(open_it(directly))
        table = open_it(directly)
        position = table.position(QUERY)
        assert position is not None
        rows: list[Any] = [row for batch in table.rows() for row in batch.column("id").to_pylist()]
        assert Counter(rows) == Counter(range(position.end)), number
        if not was_met:
            break
    else:
        pytest.fail("the block did not come to its end")
    print(f"\n{kind}, {wrong}: {number} requests failed in turn, {stopped} ended a run; each row once")
