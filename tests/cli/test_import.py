"""`penstock import kafka://…`: a topic moved into a buffer, each record once, also when it is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig
from penstock.buffer import Writers
from penstock.engine import KafkaImport, KafkaPlace
from penstock.errors import InvalidInput
from penstock.records import records_from_arrow
from penstock.storage import open_store
from tests.support.command import MAIN, Here, run
from tests.support.kafka_broker import kafka_bootstrap
from tests.support.kafka_topics import create_topic, fill
from tests.support.processes import PATIENCE

__all__ = ["kafka_bootstrap"]


def records_in(buffer: Path) -> list[Any]:
    with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
        return [record for batch in consumer for record in records_from_arrow(batch.arrow)]


def test_a_topic_is_imported_with_all_that_its_records_have_and_then_only_what_is_new(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path, here: Here
) -> None:
    create_topic(kafka_bootstrap, fresh_name, 2)
    fill(kafka_bootstrap, fresh_name, [b"a", None], key=b"k", headers=[("h", b"1")], timestamp=5_000)
    fill(kafka_bootstrap, fresh_name, [b"b"], partition=1)
    words = ("import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(tmp_path / "buffer"), "--until-end")
    done = here(*words, "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out) == {
        "topic": fresh_name,
        "events": 3,
        "bytes": 4,
        "partitions": {"0": {"from": 0, "to": 2}, "1": {"from": 0, "to": 1}},
    }
    first = next(one for one in records_in(tmp_path / "buffer") if one.value == b"a")
    assert (first.key, first.headers, first.timestamp_ms) == (b"k", (("h", b"1"),), 5_000)
    assert here(*words).out.startswith("imported 0 events, 0 bytes, of 2 partitions of kafka://")
    fill(kafka_bootstrap, fresh_name, [b"c"])
    assert here(*words).out.startswith("imported 1 event, 1 byte")
    assert sorted(one.value for one in records_in(tmp_path / "buffer")) == [b"", b"a", b"b", b"c"]


def test_from_latest_begins_at_the_end_and_a_second_start_goes_on_there(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path, here: Here
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"old"])
    words = ("import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(tmp_path / "buffer"), "--until-end")
    group = ("--from", "latest", "--group", fresh_name)
    assert here(*words, *group).out.startswith("imported 0 events")
    fill(kafka_bootstrap, fresh_name, [b"new"])
    assert here(*words, *group).out.startswith("imported 1 event")
    assert [one.value for one in records_in(tmp_path / "buffer")] == [b"new"]


def test_a_second_import_of_the_same_group_is_refused_and_appends_nothing(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"a"])
    place, store = KafkaPlace(kafka_bootstrap, fresh_name), open_store(tmp_path)
    with KafkaImport(place, store, until_end=True) as slow:
        fill(kafka_bootstrap, fresh_name, [b"b"])
        with KafkaImport(place, store, until_end=True) as quick:
            quick.run(lambda: False)
        with pytest.raises(InvalidInput, match="another process writes under this name"):
            slow.run(lambda: False)
    assert [one.value for one in records_in(tmp_path)] == [b"a", b"b"]


def test_a_topic_that_does_not_exist_is_an_error_of_one_line(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path, here: Here
) -> None:
    done = here("import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(tmp_path))
    assert done.is_error(f"there is no topic '{fresh_name}' that can be read")


@pytest.mark.parametrize("url", ["kafka://host:9092", "http://host/topic", "kafka:///topic", "kafka://host/a/b", "x"])
def test_what_is_no_url_of_a_topic_is_refused(url: str, tmp_path: Path, here: Here) -> None:
    assert here("import", url, "--to", str(tmp_path)).is_error("a topic is kafka://HOST:PORT/TOPIC")


@pytest.mark.slow
def test_a_broker_that_is_not_reached_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("import", "kafka://127.0.0.1:1/topic", "--to", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: KafkaImport('topic' at 127.0.0.1:1, group 'penstock-import'): Failed to")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_an_import_that_follows_and_what_was_read_is_in_the_buffer(
    kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    create_topic(kafka_bootstrap, fresh_name)
    fill(kafka_bootstrap, fresh_name, [b"a", b"b"])
    buffer, until = tmp_path / "buffer", time.monotonic() + PATIENCE
    words = ("import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(buffer))
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while appended(buffer) < 2:
            assert time.monotonic() < until, "nothing is imported"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out.startswith("imported 2 events, 2 bytes, of 1 partition of kafka://")
    assert err == "penstock: stopped by SIGINT; what was read is in the buffer\n"
    assert process.returncode == 0


def test_a_password_in_the_url_is_never_shown(tmp_path: Path) -> None:
    url = "kafka://me:hunter22@127.0.0.1:1/topic"
    done = run("import", url, "--to", str(tmp_path), "--kafka-option", "sasl.mechanisms=hunter22")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "hunter22" not in done.stdout + done.stderr
    assert "hunter22" not in repr(KafkaPlace.of(url, {}))


@pytest.mark.parametrize(
    ("events", "kills"),
    [(20_000, 4), pytest.param(1_000_000, 12, marks=pytest.mark.chaos)],
    ids=str,
)
@pytest.mark.timeout(1200)
def test_an_import_that_is_killed_over_and_over_has_each_record_once(
    events: int, kills: int, kafka_bootstrap: str, fresh_name: str, tmp_path: Path
) -> None:
    partitions = 4
    create_topic(kafka_bootstrap, fresh_name, partitions)
    for partition in range(partitions):
        values = (b'{"partition":%d,"offset":%d}' % (partition, number) for number in range(events // partitions))
        fill(kafka_bootstrap, fresh_name, values, partition)
    buffer, dice, killed = tmp_path / "buffer", random.Random(events), 0
    command = [sys.executable, "-c", MAIN, "import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(buffer)]
    began = time.monotonic()
    for number in range(kills):
        before, goal = appended(buffer), events * (number + 1) // (kills + 1)  # spread over the whole of it
        with subprocess.Popen(
            [*command, "--until-end", "--block-records", str(max(events // 200, 50))],
            stdout=subprocess.DEVNULL,
            env=dict(os.environ),
        ) as process:
            while process.poll() is None and appended(buffer) < goal:
                pass
            time.sleep(dice.random() / 50)  # right after a write, in the next one, or between
            process.kill()
            killed += process.wait() == -9
        assert appended(buffer) >= before, number
    done = run("import", f"kafka://{kafka_bootstrap}/{fresh_name}", "--to", str(buffer), "--until-end", "--json")
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - began
    found = Counter[bytes]()
    last = dict.fromkeys(range(partitions), -1)
    with Consumer(buffer, ConsumerConfig(gc=False)) as consumer:
        for batch in consumer:
            found.update(batch.entries)
            for value in batch.entries:
                at = json.loads(value)
                assert at["offset"] == last[at["partition"]] + 1, "lost, twice, or out of order"
                last[at["partition"]] = at["offset"]
    writers = {name.rpartition("/")[2]: one.transaction for name, one in Writers(buffer).list().items()}
    print(
        f"{events} events, {killed} of {kills} runs killed, {seconds:.0f} s: {sum(found.values())} in the buffer, "
        f"{len(found)} different, {sum(found.values()) - len(found)} twice, {events - len(found)} lost; "
        f"offsets by partition {writers}; the last run imported {json.loads(done.stdout)['events']}"
    )
    assert len(found) == sum(found.values()) == events
    assert writers == {str(partition): events // partitions for partition in range(partitions)}
    assert killed > kills // 2, "hardly a run was killed on its way"


def appended(buffer: Path) -> int:
    """How many records are in the buffer, by what its writers did last."""
    return sum(writer.transaction for writer in Writers(buffer).list().values())
