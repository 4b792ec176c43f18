"""`penstock groups`: the groups that read a buffer, and how far each is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig
from penstock.buffer import Manifest
from penstock.errors import Fenced
from tests.support.command import Here


def fill(buffer: Path, batches: int = 3, manifest_format: str = "native") -> None:
    with Producer(buffer, ProducerConfig(manifest_format=manifest_format)) as producer:
        for number in range(batches):
            producer.produce(b"%d" % number).result()


def acked(buffer: Path) -> dict[str, int]:
    return {name: group.acked_through for name, group in Manifest.read(buffer).groups.items()}


def test_a_table_shows_how_far_each_group_is_and_its_consumer(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    with Consumer(tmp_path, ConsumerConfig(gc=False)) as consumer:
        consumer.next_descriptors(1)
        consumer.ack_through(0)
    here("groups", "create", str(tmp_path), "audit")
    shown = here("groups", "list", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines() if line[0] == "│"]
    assert [row[:4] for row in rows if row[0]] == [["default", "0", "2", "1"], ["audit", "0", "2", "2"]]


def test_scripts_get_the_groups_as_json(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    here("groups", "create", str(tmp_path), "audit", "--start", "latest")
    shown = here("groups", "list", str(tmp_path), "--json")
    assert (shown.status, shown.err) == (0, "")
    default, audit = json.loads(shown.out)
    assert default == {"name": "default", "epoch": 0, "acked_through": -1, "lag": 3, "owner": "", "taken_at": 0}
    assert (audit["name"], audit["epoch"], audit["acked_through"], audit["lag"]) == ("audit", 1, 2, 0)
    assert audit["owner"]
    assert audit["taken_at"] > 0


@pytest.mark.parametrize(("start", "begins"), [("earliest", -1), ("latest", 2), ("2", 1)])
def test_a_group_begins_at_its_start(tmp_path: Path, here: Here, start: str, begins: int) -> None:
    fill(tmp_path)
    created = here("groups", "create", str(tmp_path), "audit", "--start", start)
    assert (created.status, created.out, created.err) == (
        0,
        f"created the group 'audit', which begins at {start}\n",
        "",
    )
    assert acked(tmp_path) == {"default": -1, "audit": begins}


def test_a_group_that_is_reset_goes_on_there_and_its_consumer_is_fenced(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    consumer = Consumer(tmp_path, ConsumerConfig(gc=False))
    done = here("groups", "reset", str(tmp_path), "default", "--to", "2")
    assert (done.status, done.out, done.err) == (0, "reset the group 'default': it goes on at 2\n", "")
    for use in (consumer.next_batch, consumer.close):
        with pytest.raises(Fenced):
            use()
    assert acked(tmp_path) == {"default": 1}


def test_a_group_that_is_dropped_is_gone_and_its_consumer_is_fenced(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    consumer = Consumer(tmp_path, ConsumerConfig(gc=False, group="audit"))
    done = here("groups", "drop", str(tmp_path), "audit")
    assert (done.status, done.out, done.err) == (0, "dropped the group 'audit'\n", "")
    for use in (consumer.next_batch, consumer.close):
        with pytest.raises(Fenced, match="is gone"):
            use()
    assert acked(tmp_path) == {"default": -1}


def test_the_last_group_is_dropped_only_by_force(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    refused = here("groups", "drop", str(tmp_path), "default")
    assert refused.is_error("'default' is the last group of ")
    assert acked(tmp_path) == {"default": -1}
    assert here("groups", "drop", str(tmp_path), "default", "--force").status == 0
    assert acked(tmp_path) == {}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["create", "{}", "default"], "the group 'default' is in "),
        (["create", "{}", "audit", "--start", "7"], "a group begins at 'earliest', 'latest' or a sequence"),
        (["create", "{}", "audit", "--start", "soon"], "start must be 'earliest', 'latest' or a sequence, not 'soon'"),
        (["create", "{}", ""], "group must be a name of 1 to 128 printable characters, not ''"),
        (["reset", "{}", "typo", "--to", "latest"], "there is no group 'typo' in "),
        (["reset", "{}", "default", "--to", "3"], "a group begins at 'earliest', 'latest' or a sequence"),
        (["drop", "{}", "typo"], "there is no group 'typo' in "),
        (["list", "nonsense://x"], "nonsense:// is no place for a store"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(tmp_path: Path, here: Here, words: list[str], complaint: str) -> None:
    fill(tmp_path)
    before = Manifest.read(tmp_path)
    answer = here("groups", *(word.format(tmp_path) for word in words))
    assert answer.is_error(f"{complaint}")
    assert Manifest.read(tmp_path) == before


def test_where_to_reset_to_must_be_given(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    done = here("groups", "reset", str(tmp_path), "default")
    assert (done.status, done.out) == (2, "")
    assert "--to" in done.err


@pytest.mark.parametrize("words", [["create", "audit"], ["drop", "default"], ["reset", "default", "--to", "latest"]])
def test_version_1_has_no_groups_to_change_and_says_what_to_do(tmp_path: Path, here: Here, words: list[str]) -> None:
    fill(tmp_path, manifest_format="opendata")
    verb, *rest = words
    answer = here("groups", verb, str(tmp_path), *rest)
    assert answer.is_error()
    assert "version 1" in answer.err
    assert "`penstock manifest upgrade`" in answer.err


def test_of_version_1_the_one_reader_is_listed(tmp_path: Path, here: Here) -> None:
    fill(tmp_path, manifest_format="opendata")
    (only,) = json.loads(here("groups", "list", str(tmp_path), "--json").out)
    assert (only["name"], only["acked_through"], only["lag"]) == ("default", -1, 3)


def test_another_manifest_path_is_looked_at_when_it_is_given(tmp_path: Path, here: Here) -> None:
    with Producer(tmp_path, ProducerConfig(manifest_path="orders/manifest")) as producer:
        producer.produce(b"one")
    assert here("groups", "create", str(tmp_path), "audit", "--path", "orders/manifest").status == 0
    (_, audit) = json.loads(here("groups", "list", str(tmp_path), "--json", "--path", "orders/manifest").out)
    assert (audit["name"], audit["lag"]) == ("audit", 1)


@pytest.mark.parametrize("words", [["reset", "{}", "default", "--to", "latest"], ["drop", "{}", "default", "--force"]])
def test_a_place_without_a_buffer_is_no_place_to_change_groups_and_none_is_made(
    tmp_path: Path, here: Here, words: list[str]
) -> None:
    typo = tmp_path / "typo"
    answer = here("groups", *(word.format(typo) for word in words))
    complaint = f"penstock: there is no manifest 'ingest/manifest' in file://{typo}\n"
    assert (answer.status, answer.out, answer.err) == (1, "", complaint)
    assert not typo.exists()


def test_a_group_can_be_created_before_its_buffer_with_a_message(tmp_path: Path, here: Here) -> None:
    created = here("groups", "create", str(tmp_path / "new"), "audit")
    answer = "created the group 'audit', which begins at earliest, in a new buffer\n"
    assert (created.status, created.out, created.err) == (0, answer, "")
    assert acked(tmp_path / "new") == {"default": -1, "audit": -1}


def test_a_new_buffer_needs_no_group_default_and_none_is_made(tmp_path: Path, here: Here) -> None:
    answer = here("groups", "create", str(tmp_path / "new"), "default")
    assert answer.is_error("there is no manifest 'ingest/manifest' in ")
    assert answer.err.endswith(", and a new buffer has the group 'default' by itself\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["create", "{}", "audit", "--start"], ["reset", "{}", "default", "--to"]])
def test_a_number_that_no_sequence_can_be_is_one_line(tmp_path: Path, here: Here, words: list[str]) -> None:
    fill(tmp_path)
    answer = here("groups", *(word.format(tmp_path) for word in words), "9" * 5000)
    complaint = "penstock: start must be 'earliest', 'latest' or a sequence, not a number of 5000 digits\n"
    assert (answer.status, answer.out, answer.err) == (1, "", complaint)


@pytest.mark.parametrize("name", ["[/oops]", "[red]alert[/red]", ":warning:", "a\\"])
def test_a_name_is_shown_as_it_is_whatever_is_in_it(tmp_path: Path, here: Here, name: str) -> None:
    fill(tmp_path)
    here("groups", "create", str(tmp_path), name)
    for words in (["groups", "list"], ["status"]):
        shown = here(*words, str(tmp_path))
        assert (shown.status, shown.err) == (0, "")
        assert f" {name} " in shown.out


def test_a_takeover_at_a_time_that_no_calendar_has_is_listed(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    Consumer(tmp_path, ConsumerConfig(gc=False), clock=lambda: 1e12).close()
    shown = here("groups", "list", str(tmp_path))
    assert (shown.status, shown.err) == (0, "")
    assert "default" in shown.out


def test_the_help_of_reset_says_what_it_means_for_a_checkpoint(here: Here) -> None:
    answer = " ".join(here("groups", "reset", "--help").out.split())
    assert "One that is behind the acks is refused; one that is ahead goes on there" in answer


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full on this system")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(["groups", "list"], ""), (["groups", "list", "--json"], "1")],
    ids=["table", "unbuffered"],
)
def test_an_answer_that_cannot_be_written_is_one_line_and_status_1(
    tmp_path: Path, words: list[str], unbuffered: str
) -> None:
    fill(tmp_path)
    command = [sys.executable, "-m", "penstock.cli", *words, str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, env=environment)
    complaint = b"penstock: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, complaint)


def test_a_long_name_is_shown_whole_where_no_terminal_is(tmp_path: Path, here: Here) -> None:
    fill(tmp_path)
    name = "a-group-whose-name-is-longer-than-any-column-of-a-table-that-is-eighty-wide"
    here("groups", "create", str(tmp_path), name)
    assert "…" not in here("groups", "list", str(tmp_path)).out
