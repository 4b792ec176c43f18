"""Opening an Iceberg table: names, catalogs, and errors that show no credential."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput, PenstockError
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.iceberg import table as opening
from penstock.spark.tables.iceberg.table import open_iceberg
from tests.spark.tables.iceberg.blocks import COLUMNS, opened, rows_of, staged, strangers_rows
from tests.support.servers import BUCKET, S3Server


@pytest.mark.parametrize("name", ["", "clicks", "web.clicks", "lake..clicks", "lake.web.", " lake.web.clicks"])
def test_a_name_has_a_catalog_a_namespace_and_a_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"catalog\.namespace\.table"):
        opened(tmp_path, name)


def test_a_namespace_may_have_several_parts(tmp_path: Path) -> None:
    assert staged(opened(tmp_path, "lake.web.raw.clicks"), 0, 3).commit()
    assert strangers_rows(tmp_path, "lake.web.raw.clicks") == rows_of(0, 3)
    assert staged(opened(tmp_path, "lake.web.raw.other"), 0, 3).commit()


def test_a_directory_alone_has_a_catalog_of_its_own(tmp_path: Path) -> None:
    warehouse = tmp_path / "not" / "there yet"
    for where in (str(warehouse), f"file://{tmp_path}/not/there%20yet"):
        table = open_iceberg("lake.web.clicks", catalog={"warehouse": where})
        assert table.place == f"iceberg:{warehouse}/catalog.db:lake.web.clicks"
    assert staged(table, 0, 3).commit()
    assert strangers_rows(warehouse) == rows_of(0, 3)


def test_any_other_warehouse_needs_a_catalog(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the warehouse s3://bucket/x needs a catalog .*'type': 'rest'"):
        open_iceberg("lake.web.clicks", catalog={"warehouse": "s3://bucket/x"})


def test_pyicebergs_own_configuration_counts_where_no_catalog_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  ours:\n    type: sql\n    uri: sqlite:///{tmp_path}/catalog.db\n    warehouse: {tmp_path}\n"
    )
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    assert staged(open_iceberg("ours.web.clicks"), 0, 3).commit()
    assert strangers_rows(tmp_path, "ours.web.clicks") == rows_of(0, 3)
    with pytest.raises(InvalidInput, match="could not open the Iceberg catalog 'theirs'"):
        open_iceberg("theirs.web.clicks")


def test_without_pyiceberg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == "pyiceberg" else find_spec(name))
    with pytest.raises(InvalidInput, match=r"pip install 'penstock\[iceberg\]'"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "options", [{"schema_evolution": "all"}, {"catalog": {"warehouse": 7}}], ids=["evolution", "catalog"]
)
def test_options_that_cannot_be_right_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        open_iceberg("lake.web.clicks", **options)


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "nothing", "s3.secret-access-key": "hunter22"},
        {"type": "sql", "s3.secret-access-key": "hunter22"},
        {"uri": "nothing://user:hunter22@host/db"},
        {"type": "sql", "uri": "postgresql+nothing://user:hunter22@host/db"},
        {"type": "rest", "uri": "http://127.0.0.1:1/x", "credential": "me:hunter22"},
        {"type": "sql", "uri": "sqlite:////nowhere/at/all.db", "token": "hunter22"},
    ],
    ids=lambda catalog: " ".join(catalog),
)
def test_no_error_shows_a_credential(catalog: dict[str, str]) -> None:
    with pytest.raises(PenstockError) as raised:
        open_iceberg("lake.web.clicks", catalog=catalog)
    assert "hunter22" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_no_text_of_a_table_shows_a_credential(tmp_path: Path) -> None:
    catalog = {"warehouse": str(tmp_path), "s3.secret-access-key": "hunter22"}
    table = open_iceberg("lake.web.clicks", catalog=catalog)
    writer = table.writer(COLUMNS, BlockId("q", 0, 1))
    shown = [repr(table), str(table), table.place, repr(writer), repr(writer.open(0)), repr(table._catalog)]
    assert not [text for text in shown if "hunter22" in text]


def test_a_writer_goes_to_executors_by_pickle(tmp_path: Path) -> None:
    import pyarrow as pa

    table = opened(tmp_path, partition_by=["bucket(4, id)"])
    block = BlockId("q", 0, 5)
    for _ in range(30):  # its size does not grow with the table's snapshots
        assert staged(table, 0, 5, query=f"other.{_}").commit()
    data = pickle.dumps(table.writer(COLUMNS, block))
    assert len(data) < 20_000
    writer = pickle.loads(data)
    files = writer.open(3)
    files.add(pa.RecordBatch.from_pylist([dict(row) for row in rows_of(0, 5)], schema=writer.schema))
    assert table.staged(block, files.close()).commit()
    assert len(strangers_rows(tmp_path)) == 31 * 5


def test_a_table_on_s3_with_a_catalog_in_sql(tmp_path: Path, s3_server: S3Server, fresh_name: str) -> None:
    options = s3_server.options
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/{fresh_name}",
        "s3.endpoint": str(options["endpoint"]),
        "s3.access-key-id": str(options["access_key_id"]),
        "s3.secret-access-key": str(options["secret_access_key"]),
        "s3.region": str(options["region"]),
    }
    table = open_iceberg("lake.web.clicks", catalog=catalog, partition_by=["bucket(2, id)"])
    for first in (0, 10, 20):
        assert staged(table, first, first + 10).commit()
    assert not staged(table, 20, 30).commit()
    assert table.compact().files_after == 2
    assert table.vacuum(0).files >= 6
    from pyiceberg.catalog import load_catalog

    rows = load_catalog("lake", **catalog).load_table("web.clicks").scan().to_arrow().sort_by("id").to_pylist()
    assert rows == rows_of(0, 30)


def test_the_embedded_catalog_makes_commits_durable_before_it_says_so(tmp_path: Path) -> None:
    table = opened(tmp_path)
    with table._catalog.catalog.engine.connect() as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3  # EXTRA
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


def test_every_file_and_its_name_is_synced_before_a_commit_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    synced: set[int] = set()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    warehouse = tmp_path / "new"
    table = opened(warehouse, partition_by=["bucket(2, id)"])
    assert staged(table, 0, 5).commit()
    there = [path for path in (warehouse, *warehouse.rglob("*")) if not path.name.startswith("catalog.db")]
    assert len(there) > 8
    assert [path for path in there if path.stat().st_ino not in synced] == []
    # And what was read of another driver's commit, which may have been killed before it was durable.
    synced.clear()
    assert opened(warehouse).position("8f1c.default") is not None
    assert warehouse.stat().st_ino in synced


def test_the_io_of_a_local_table_is_durable_in_any_catalog(tmp_path: Path) -> None:
    from penstock.spark.tables.iceberg.durable_files import DurableFileIO

    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db", "warehouse": f"file://{tmp_path}/files"}
    table = open_iceberg("lake.web.clicks", catalog=catalog)
    assert isinstance(table.writer(COLUMNS, BlockId("q", 0, 1)).layout.io, DurableFileIO)
    assert staged(table, 0, 5).commit()
    assert (tmp_path / "files" / "web" / "clicks").is_dir()
