"""Many processes publish at once, their replies get lost, some are killed: there is one order, and nothing twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.metalog import ObjectMetadataLog
from penstock.storage import open_store
from tests.metalog.object.publishers import PARTITIONS, Crowd, Follower, Place, read_ledgers
from tests.metalog.object.stores import read_all
from tests.support.processes import Start
from tests.support.servers import BUCKET, S3Server


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path, fresh_name: str) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "log"), {})
    server: S3Server = request.getfixturevalue("s3_server")
    return Place(f"s3://{BUCKET}/{fresh_name}", server.options)


@pytest.mark.parametrize(
    ("publishers", "each", "kills"),
    [
        pytest.param(8, 25, 3, id="small"),
        pytest.param(8, 500, 5, id="whole", marks=[pytest.mark.chaos, pytest.mark.timeout(1200)]),
    ],
)
def test_all_readers_see_one_order_with_all_that_was_acknowledged(
    publishers: int, each: int, kills: int, place: Place, start: Start, tmp_path: Path
) -> None:
    ObjectMetadataLog(open_store(place.url, **place.options), PARTITIONS).close()
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    if place.options:
        each = each // 2 if each < 100 else each  # moto is slow
    began = time.monotonic()
    with place.open(seed=1) as faulty, place.open() as sound:
        early = Follower(faulty)
        crowd = Crowd(start, place, ledgers, seed=7)
        crowd.run(publishers, each, kills)
        took = time.monotonic() - began
        ends = sound.high_water_marks()
        late = [read_all(sound, partition) for partition in range(PARTITIONS)]

        assert early.result(ends) == late
    there = Counter(payload for payloads in late for payload in payloads)
    reports = read_ledgers(ledgers)
    acknowledged = [one for one in reports if one.offset is not None]
    for one in acknowledged:
        assert one.offset is not None
        assert late[one.partition][one.offset] == one.payload
    assert max(there.values()) == 1, "nothing is there twice"
    assert len(reports) == publishers * each
    assert crowd.kills == kills
    assert sum(there.values()) >= len(acknowledged) + crowd.held > len(acknowledged), (
        "some died before they got an answer"
    )
    print(
        f"{publishers} x {each} on {place.url.partition(':')[0]}: {len(acknowledged)} acknowledged, "
        f"{len(reports) - len(acknowledged)} unknown, {sum(there.values()) - len(acknowledged)} there besides, "
        f"{kills} killed, {took:.1f} s"
    )
