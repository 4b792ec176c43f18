"""`penstock writers`: the writers that a buffer remembers, and what each did last."""

from __future__ import annotations

import json
from pathlib import Path

from penstock import Producer, ProducerConfig
from penstock.buffer.groups import Writers
from penstock.buffer.producer.block_appender import BlockAppender, BlockName
from penstock.records import values_to_arrow
from penstock.storage import open_store
from tests.support.command import Here

QUERY = "5f2b7c7e-8f0c-4b57-9d7e-0a4f6f5e9b11"


def append(buffer: Path, number: int, name: str = QUERY) -> bool:
    appender = BlockAppender(open_store(buffer))
    return appender.append([appender.write(values_to_arrow([b"one"]))], BlockName(name, number))


def test_a_table_shows_the_writers_and_what_each_did_last(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7)
    with Producer(tmp_path) as producer:
        producer.produce(b"one")
    shown = here("writers", "list", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines() if line[0] == "│"]
    assert [row[1:4] for row in rows if row[1]] == [["named", "7", "0"], ["producer", "0", "1"]]


def test_a_querys_id_is_shown_whole_for_it_is_what_drop_asks_for(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7)
    assert QUERY in here("writers", "list", str(tmp_path)).out


def test_a_writers_name_is_shown_as_it_is_whatever_is_in_it(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7, "[/oops] :warning:")
    shown = here("writers", "list", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    assert "│ [/oops] :warning: │" in shown.out


def test_a_write_at_a_time_that_no_calendar_has_is_listed(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, clock=lambda: 1e12) as producer:
        producer.produce(b"one")
    shown = here("writers", "list", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    assert "producer" in shown.out


def test_scripts_get_the_writers_as_json(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7)
    append(tmp_path, 8)
    shown = here("writers", "list", str(tmp_path), "--json")
    assert (shown.status, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert found[QUERY].pop("at") > 0
    assert found == {QUERY: {"transaction": 8, "first_sequence": 1, "revision": 3, "is_named": True}}


def test_what_a_dropped_writer_sends_again_is_appended_again(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7)
    assert not append(tmp_path, 7)
    answer = here("writers", "drop", str(tmp_path), QUERY)
    assert (answer.status, answer.out, answer.err) == (0, f"dropped the writer {QUERY!r}\n", "")
    assert Writers(tmp_path).list() == {}
    assert append(tmp_path, 7)


def test_a_writer_that_is_not_known_is_one_line_and_status_1(tmp_path: Path, here: Here) -> None:
    append(tmp_path, 7)
    answer = here("writers", "drop", str(tmp_path), "typo")
    assert (answer.status, answer.out, answer.err) == (
        1,
        "",
        f"penstock: no writer 'typo' is known to file://{tmp_path}/ingest/manifest\n",
    )


def test_version_1_knows_no_writers_and_says_what_to_do(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_format="opendata")) as producer:
        producer.produce(b"one")
    for words in (["list", str(tmp_path)], ["drop", str(tmp_path), "query"]):
        answer = here("writers", *words)
        assert answer.is_error()
        assert "`penstock manifest upgrade`" in answer.err
