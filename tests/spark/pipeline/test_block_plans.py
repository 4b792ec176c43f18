"""Sinks that keep no position get the same block again: what is planned is beside the checkpoint, and counts first."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, open_store, peek
from penstock.errors import CorruptData, Fenced, InvalidInput, SinkFailed
from penstock.spark import Pipeline
from penstock.spark.pipeline.block_plans import BlockPlans, SmallFiles, open_files
from penstock.spark.tables.contract import Position
from tests.support.pipeline_places import Places
from tests.support.restored_buffers import copied
from tests.support.servers import BUCKET, S3Server
from tests.support.waiting import Background, Gate, together

NOTHING: Any = None  # no session is needed for files on a disk or in a store


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def plans_in(places: Places) -> dict[int, int]:
    """The plans beside the checkpoint: first sequences, and where the blocks end."""
    found = (places.checkpoint / "penstock" / "blocks").glob("*/*.json")
    return {int(path.stem): json.loads(path.read_text())["end"] for path in found}


def keeping(got: list[tuple[str, list[int]]], fails: Callable[[], object] = lambda: None) -> Callable[[Any, str], None]:
    """A sink that keeps the names of its blocks and their payloads, and fails then if it is to."""

    def keep(rows: Any, block: str) -> None:
        got.append((block, sorted(int(row["value"]) for row in rows.collect())))
        fails()

    return keep


def failing() -> None:
    raise OSError("killed behind its commit")


# The files


@pytest.fixture(params=["disk", "file:", "s3", pytest.param("hadoop", marks=pytest.mark.slow)])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SmallFiles:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        for name, value in server.options.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", str(value).lower())
        return open_files(NOTHING, f"s3a://{BUCKET}/{request.getfixturevalue('fresh_name')}")
    if request.param == "hadoop":
        spark = request.getfixturevalue("spark")
        configuration, name = spark._jsc.hadoopConfiguration(), tmp_path.name.replace("_", "-")
        configuration.set(f"fs.viewfs.mounttable.{name}.link./data", f"file://{tmp_path}")
        return open_files(spark, f"viewfs://{name}/data/checkpoint")
    return open_files(NOTHING, f"{'file://' if request.param == 'file:' else ''}{tmp_path}/checkpoint")


def test_the_first_plan_of_a_block_counts_whichever_driver_it_is_of(files: SmallFiles) -> None:
    one, other = BlockPlans(files, "query"), BlockPlans(files, "query")
    assert one.read(3) is None
    assert one.write(3, 7, "ingest/a") == 7
    assert other.write(3, 5, "ingest/b") == 7
    assert other.read(3) == Position(7, 3, "ingest/a")
    assert BlockPlans(files, "another").read(3) is None
    assert files.names("penstock/blocks/query") == ["00000000000000000003.json"]


def test_plans_below_the_frontier_are_removed_and_others_stay(files: SmallFiles) -> None:
    plans = BlockPlans(files, "query")
    for first in (3, 7, 10, 100):
        plans.write(first, first + 1, "ingest/a")
    plans.forget_before(10)
    assert [first for first in (3, 7, 10, 100) if plans.read(first)] == [10, 100]
    plans.forget_before(10)


def test_of_many_that_plan_one_block_at_once_all_get_the_same_end(tmp_path: Path) -> None:
    def planning(end: int) -> Callable[[], int]:
        return partial(BlockPlans(open_files(NOTHING, str(tmp_path)), "query").write, 0, end, "x")

    ends = together(*map(planning, range(1, 9)))
    assert len(set(ends)) == 1
    assert [path.name for path in (tmp_path / "penstock/blocks/query").iterdir()] == ["0" * 20 + ".json"]


@pytest.mark.parametrize("data", [b"", b"no JSON", b"[]", b'{"end": "x"}', b"{}"])
def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, data: bytes) -> None:
    files = open_files(NOTHING, str(tmp_path))
    assert files.write_new("penstock/blocks/query/00000000000000000003.json", data)
    with pytest.raises(CorruptData, match=r"plan penstock/blocks/query/0+3\.json beside the checkpoint is broken"):
        BlockPlans(files, "query").read(3)


def test_a_plan_is_durable_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    BlockPlans(open_files(NOTHING, str(tmp_path)), "query").write(0, 1, "x")
    folder = tmp_path / "penstock" / "blocks" / "query"
    assert synced[0].startswith(f"{folder}/00000000000000000000.json")
    names = {str(folder), str(folder.parent), str(tmp_path / "penstock")}
    assert names <= set(synced[1:])
    synced.clear()
    BlockPlans(open_files(NOTHING, str(tmp_path)), "query").write(0, 2, "x")
    assert names <= set(synced), "that of a driver that was killed before it synced, too"


# In runs


def test_a_sink_that_keeps_no_position_needs_a_checkpoint_and_a_table_does_not(spark: Any, places: Places) -> None:
    places.put([b'{"id": 1}'])
    for pipeline in (
        Pipeline(places.events).to(lambda _rows, _block: None),
        Pipeline(places.events).to_buffer(places.root / "out"),
    ):
        with pytest.raises(InvalidInput, match=r"needs a place to write down .*checkpoint="):
            pipeline.run(spark, "available_now")
    assert places.queued() == [0]
    Pipeline(places.events).parse("json", "id bigint").to_parquet(places.table).run(spark, "available_now")
    assert (places.rows(), places.queued()) == ([{"id": 1}], [])


def test_a_run_after_a_crash_does_the_same_block_whatever_its_own_caps_are(spark: Any, places: Places) -> None:
    places.put(*([b"%d" % number] for number in range(6)))
    got: list[tuple[str, list[int]]] = []
    with pytest.raises(SinkFailed, match="killed behind its commit"):
        places.pipeline(maxBatchesPerTrigger=4).to(keeping(got, failing)).run(spark, "available_now")
    assert plans_in(places) == {0: 4}
    places.pipeline(maxBatchesPerTrigger=1).to(keeping(got)).run(spark, "available_now")
    assert got[0] == got[1]
    assert [values for _, values in got] == [[0, 1, 2, 3], [0, 1, 2, 3], [4], [5]]
    assert len({block for block, _ in got}) == 3
    assert (plans_in(places), places.queued()) == ({}, [])


def test_two_drivers_with_other_caps_get_the_same_block_under_one_name(spark: Any, places: Places) -> None:
    places.put(*([b"%d" % number] for number in range(5)))
    first: list[tuple[str, list[int]]] = []
    second: list[tuple[str, list[int]]] = []
    gate = Gate()
    slow = places.pipeline(maxBatchesPerTrigger=3).to(keeping(first, gate))
    running = Background(slow.run, spark, "available_now")
    gate.wait_for_arrival()
    places.pipeline(maxBatchesPerTrigger=2).to(keeping(second)).run(spark, "available_now")
    gate.open()
    assert isinstance(running.error(), Fenced)
    assert first[0] == second[0]
    assert [values for _, values in second] == [[0, 1, 2], [3, 4]]
    assert places.queued() == []


def test_a_buffer_gets_a_block_once_though_it_comes_again_with_other_caps(spark: Any, places: Places) -> None:
    places.put(*([b"%d" % number] for number in range(5)))
    out = places.root / "out"
    is_taken_over = threading.Event()

    def take_over(rows: Any) -> Any:
        if not is_taken_over.is_set():
            is_taken_over.set()
            Consumer(places.events).close()  # so that the block is written, and its ack is fenced
        return rows

    with pytest.raises(Fenced):
        places.pipeline(maxBatchesPerTrigger=3).transform(take_over).to_buffer(out).run(spark, "available_now")
    assert (plans_in(places), places.queued()) == ({0: 3}, [0, 1, 2, 3, 4])
    assert len(peek(open_store(out), 10)) == 3
    places.pipeline(maxBatchesPerTrigger=2).to_buffer(out).run(spark, "available_now")
    assert [int(record.value) for record in peek(open_store(out), 10)] == [0, 1, 2, 3, 4]
    assert (plans_in(places), places.queued()) == ({}, [])


@pytest.mark.parametrize("more", [0, 2])
def test_a_plan_of_a_block_that_was_lost_is_not_filled_with_other_events(spark: Any, places: Places, more: int) -> None:
    places.put([b"1"])
    restore = copied(places.events)
    places.put([b"2"])
    got: list[tuple[str, list[int]]] = []
    sink = keeping(got, failing)
    with pytest.raises(SinkFailed, match="killed behind its commit"):
        places.pipeline().to(sink).run(spark, "available_now")
    restore()
    for number in range(more):
        places.put([b"%d" % (100 + number)])
    queued = places.queued()
    with pytest.raises(CorruptData, match=r"the plan beside the checkpoint .* lost its last writes"):
        places.pipeline().to(sink).run(spark, "available_now")
    assert (places.queued(), len(got)) == (queued, 1)
