"""`penstock metalog`: a metadata log as a table, and its records as JSON lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock import open_store
from penstock.metalog import (
    ObjectMetadataLog,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    encode_event,
)
from penstock.metalog.object.format import encode
from penstock.storage import ObjectStore
from tests.support.command import Answer, Here, storage_options
from tests.support.servers import BUCKET, S3Server

TP = TopicIdPartition(UUID(int=7), "orders [red]\x1b[31m", 3)
SEGMENT = SegmentId(TP, UUID(int=8))
EVENTS: list[SegmentMetadata | SegmentUpdate | PartitionDelete] = [
    SegmentMetadata(SEGMENT, 0, 99, 5, 1, 6, 1024, SegmentState.COPY_SEGMENT_STARTED, {0: 0, 2: 50}, b"\x00\xff"),
    SegmentUpdate(SEGMENT, 7, SegmentState.COPY_SEGMENT_FINISHED, 2),
    PartitionDelete(TP, PartitionDeleteState.MARKED, 8, 2),
]
NAMES = {"topic": TP.topic, "topic_id": str(TP.topic_id), "topic_partition": 3}


def fill(where: Path | ObjectStore, partitions: int = 3) -> None:
    """Three events in partition 1, and in partition 2 something that is none."""
    with ObjectMetadataLog(where, partitions) as log:
        for event in EVENTS:
            log.publish(1, encode_event(event))
        log.publish(2, b"no event")


def lines(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.out.splitlines()]


def places(answer: Answer) -> list[tuple[int, int]]:
    return [(one["partition"], one["offset"]) for one in lines(answer)]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_table_shows_each_partition_with_its_mark_and_its_objects(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "status", str(tmp_path))
    assert (answer.status, answer.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in answer.out.splitlines() if line[0] == "│"]
    assert rows == [["0", "0", "0"], ["1", "3", "3"], ["2", "1", "1"]]


def test_scripts_get_the_status_as_json(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "status", str(tmp_path), "--json")
    assert (answer.status, answer.err) == (0, "")
    assert json.loads(answer.out) == [
        {"partition": 0, "high_water_mark": 0, "objects": 0, "error": None},
        {"partition": 1, "high_water_mark": 3, "objects": 3, "error": None},
        {"partition": 2, "high_water_mark": 1, "objects": 1, "error": None},
    ]


def test_every_kind_of_event_is_dumped_with_all_that_is_in_it(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "dump", str(tmp_path), "--partition", "1")
    assert (answer.status, answer.err) == (0, "")
    assert lines(answer) == [
        {
            "partition": 1,
            "offset": 0,
            "event": {
                "type": "SegmentMetadata",
                "state": "COPY_SEGMENT_STARTED",
                **NAMES,
                "segment_id": str(SEGMENT.id),
                "start_offset": 0,
                "end_offset": 99,
                "max_timestamp_ms": 5,
                "segment_size_in_bytes": 1024,
                "segment_leader_epochs": {"0": 0, "2": 50},
                "txn_index_empty": False,
                "event_timestamp_ms": 6,
                "broker_id": 1,
                "custom_metadata_base64": base64.b64encode(b"\x00\xff").decode(),
            },
        },
        {
            "partition": 1,
            "offset": 1,
            "event": {
                "type": "SegmentUpdate",
                "state": "COPY_SEGMENT_FINISHED",
                **NAMES,
                "segment_id": str(SEGMENT.id),
                "event_timestamp_ms": 7,
                "broker_id": 2,
                "custom_metadata_base64": None,
            },
        },
        {
            "partition": 1,
            "offset": 2,
            "event": {
                "type": "PartitionDelete",
                "state": "MARKED",
                **NAMES,
                "event_timestamp_ms": 8,
                "broker_id": 2,
            },
        },
    ]


def test_a_name_cannot_say_anything_to_a_terminal(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "dump", str(tmp_path))
    assert "\x1b" not in answer.out
    assert "orders [red]\\u001b[31m" in answer.out


def test_a_payload_that_is_no_event_is_printed_with_its_error_and_does_not_stop(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    with ObjectMetadataLog(tmp_path) as log:
        log.publish(2, encode_event(EVENTS[2]))
    answer = here("metalog", "dump", str(tmp_path), "--partition", "2")
    assert (answer.status, answer.err) == (0, "")
    poison, event = lines(answer)
    assert base64.b64decode(poison["payload_base64"]) == b"no event"
    assert poison["error"] == "a segment event has the frame 110; this Penstock reads 1"
    assert event["event"]["type"] == "PartitionDelete"


def test_raw_payloads_are_base64_and_nothing_is_decoded(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "dump", str(tmp_path), "--raw", "--partition", "2")
    assert lines(answer) == [{"partition": 2, "offset": 0, "payload_base64": base64.b64encode(b"no event").decode()}]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [(1, 0), (1, 1), (1, 2), (2, 0)]),
        (["--partition", "2", "--partition", "1", "--partition", "2"], [(2, 0), (1, 0), (1, 1), (1, 2)]),
        (["--partition", "0"], []),
        (["--from", "1"], [(1, 1), (1, 2)]),
        (["--from", "1", "--limit", "1"], [(1, 1)]),
        (["--limit", "2"], [(1, 0), (1, 1)]),
        (["--limit", "4"], [(1, 0), (1, 1), (1, 2), (2, 0)]),
        (["--limit", "0"], []),
        (["--from", "9223372036854775807"], []),
    ],
)
def test_what_is_dumped_can_be_chosen(
    tmp_path: Path, here: Here, words: list[str], expected: list[tuple[int, int]]
) -> None:
    fill(tmp_path)
    answer = here("metalog", "dump", str(tmp_path), *words)
    assert (answer.status, answer.err, places(answer)) == (0, "", expected)


def test_a_start_inside_an_object_is_found(tmp_path: Path, here: Here) -> None:
    with ObjectMetadataLog(tmp_path, 1) as log:
        open_store(tmp_path).put_if_absent(f"0/{0:020d}", encode(0, 0, bytes(16), [b"a", b"b", b"c"]))
        log.publish(0, b"d")
    assert places(here("metalog", "dump", str(tmp_path), "--from", "1")) == [(0, 1), (0, 2), (0, 3)]


def test_a_partition_that_the_log_does_not_have_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    answer = here("metalog", "dump", str(tmp_path), "--partition", "1", "--partition", "3")
    complaint = "penstock: partition 3 is out of range: the log has 3 partitions, 0 to 2\n"
    assert (answer.status, answer.out, answer.err) == (1, "", complaint)


@pytest.mark.parametrize("verb", ["status", "dump"])
def test_where_there_is_no_log_none_is_made(tmp_path: Path, here: Here, verb: str) -> None:
    typo = tmp_path / "typo"
    answer = here("metalog", verb, str(typo))
    complaint = f"penstock: there is no metadata log in file://{typo}\n"
    assert (answer.status, answer.out, answer.err) == (1, "", complaint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["status", "dump"])
def test_looking_writes_nothing(tmp_path: Path, here: Here, verb: str) -> None:
    fill(tmp_path)
    before = files(tmp_path)
    assert here("metalog", verb, str(tmp_path)).status == 0
    assert files(tmp_path) == before


def test_an_object_that_cannot_be_read_ends_its_partition_and_the_others_follow(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    damaged = tmp_path / "1" / f"{1:020d}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    answer = here("metalog", "dump", str(tmp_path))
    assert (answer.status, places(answer), answer.err.count("\n")) == (1, [(1, 0), (2, 0)], 1)
    assert answer.err.startswith(f"penstock: file://{tmp_path}/1/{1:020d}: ")


def test_the_status_of_a_partition_whose_end_cannot_be_read_is_not_known(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    (tmp_path / "1" / f"{2:020d}").write_bytes(b"?")
    answer = here("metalog", "status", str(tmp_path))
    assert (answer.status, answer.err.count("\n")) == (1, 1)
    assert answer.err.startswith(f"penstock: file://{tmp_path}/1/{2:020d}: ")
    assert [line.split("│")[2].strip() for line in answer.out.splitlines() if line[0] == "│"] == ["0", "not known", "1"]


@pytest.mark.parametrize("verb", ["status", "dump"])
def test_a_log_that_is_damaged_is_one_line_and_status_1(tmp_path: Path, here: Here, verb: str) -> None:
    (tmp_path / "log.json").write_text("{}")
    answer = here("metalog", verb, str(tmp_path))
    assert answer.is_error()


def test_storage_options_reach_the_store(s3_server: S3Server, fresh_name: str, here: Here) -> None:
    where = f"s3://{BUCKET}/{fresh_name}"
    fill(open_store(where, **s3_server.options))
    options = storage_options(s3_server.options)
    marks = [one["high_water_mark"] for one in json.loads(here("metalog", "status", where, "--json", *options).out)]
    assert marks == [0, 3, 1]
    assert len(lines(here("metalog", "dump", where, *options))) == 4
