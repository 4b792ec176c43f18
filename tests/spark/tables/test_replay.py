"""A replay that is killed after any write, or that two processes run at once: each letter is in the buffer once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock.engine
from penstock import Record, open_store, peek
from penstock.buffer import Groups
from penstock.engine import Filter, Ledger, Replay, StoredLetter, Target
from penstock.engine.letters import replay
from penstock.errors import InvalidInput
from penstock.storage import ObjectStore
from tests.support.dying_store import Dying, Killed, Writes

pytest.importorskip("pyspark")

import penstock.spark
from penstock.spark.tables.existing import OpenedTable, open_existing
from penstock.spark.tables.parquet.objects import ObjectBlocks
from penstock.spark.tables.parquet.table import ParquetTable, open_table
from tests.support.plain_tables import put_letters

MANIFEST = "ingest/manifest"
LETTERS = 10


class Stage:
    """A table of letters, a buffer, and replays from the one into the other."""

    def __init__(self, root: Path, name: str) -> None:
        self.url = str(root / "letters")
        self.buffer = f"memory://{name}-events"
        self.notes = f"memory://{name}-notes"
        put_letters(open_table(None, self.url), [{"payload": b"%d" % number} for number in range(LETTERS)])
        Groups(self.buffer).create("audit")

    def opened(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> OpenedTable:
        found = open_existing(self.url)
        notes = wrap(open_store(self.notes))

        class Opened(OpenedTable):
            def notes(self) -> ObjectStore:
                return notes

        return Opened(found.kind, found.table, found.notes_url, found.notes_options)

    def replay(self, wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store) -> Replay:
        return Replay(self.opened(wrap), Target(wrap(open_store(self.buffer)), MANIFEST))

    def events(self) -> Counter[bytes]:
        return Counter(record.value for record in peek(self.buffer, 1_000))


ONCE = Counter({b"%d" % number: 1 for number in range(LETTERS)})


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_LETTERS_PER_PLAN", 4)


@pytest.mark.parametrize("after", [False, True])
def test_a_replay_killed_at_any_write_and_run_again_sends_each_letter_once(
    tmp_path: Path, fresh_name: str, after: bool
) -> None:
    kills = 0
    for step in range(100):
        stage = Stage(tmp_path / f"{after}-{step}", f"{fresh_name}-{step}")
        writes = Writes(step, after=after)
        try:
            stage.replay(lambda store, writes=writes: Dying(store, writes)).run(Filter())  # type: ignore[misc]
        except Killed:
            kills += 1
        else:
            break
        assert max(stage.events().values(), default=0) <= 1
        before = sum(stage.events().values())
        done = stage.replay().run(Filter())
        assert stage.events() == ONCE
        assert done.replayed >= LETTERS - before
        assert stage.replay().run(Filter()).replayed == 0
        assert stage.events() == ONCE
    assert kills >= 9  # three plans, each planned, written, appended and noted


def test_two_replays_at_once_send_each_letter_once(tmp_path: Path, fresh_name: str) -> None:
    for round_number in range(10):
        stage = Stage(tmp_path / str(round_number), f"{fresh_name}-{round_number}")
        both = threading.Barrier(2)
        counts: list[int] = []

        def run(stage: Stage = stage, both: threading.Barrier = both, counts: list[int] = counts) -> None:
            mine = stage.replay()
            both.wait(30)
            counts.append(mine.run(Filter()).replayed)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(counts) == 2
        assert stage.events() == ONCE


def test_a_replay_that_was_paused_before_its_append_does_not_send_a_plan_twice(tmp_path: Path, fresh_name: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    paused = stage.replay()
    finish = paused._finish

    def later(plan: Any) -> None:
        paused._finish = finish  # type: ignore[method-assign]
        stage.replay().run(Filter())  # another does all of it meanwhile
        finish(plan)

    paused._finish = later  # type: ignore[method-assign]
    paused.run(Filter())
    assert stage.events() == ONCE


def test_what_was_begun_into_another_buffer_has_to_be_finished_there(tmp_path: Path, fresh_name: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    with pytest.raises(Killed):
        stage.replay(lambda store: Dying(store, Writes(2, after=True))).run(Filter())
    assert [plan.is_done for plan in Ledger(open_store(stage.notes)).plans()] == [False]
    other = f"memory://{fresh_name}-other"
    Groups(other).create("audit")
    with pytest.raises(InvalidInput, match=f"a replay of 4 letters into {stage.buffer} was begun"):
        Replay(stage.opened(), Target(open_store(other), MANIFEST)).run(Filter())
    with pytest.raises(InvalidInput, match=r"gone for good, remove memory://.*/plans/000000000000"):
        Replay(stage.opened(), Target(open_store(other), MANIFEST)).run(Filter(), dry_run=True)
    done = stage.replay().run(Filter())
    assert (done.replayed, done.finished, done.skipped) == (LETTERS, 4, 0)
    assert stage.events() == ONCE


def test_a_plan_for_a_buffer_that_is_gone_can_be_removed(tmp_path: Path, fresh_name: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    with pytest.raises(Killed):
        stage.replay(lambda store: Dying(store, Writes(2, after=True))).run(Filter())
    open_store(stage.notes).delete(["plans/000000000000"])
    stage.buffer = f"memory://{fresh_name}-other"
    Groups(stage.buffer).create("audit")
    assert stage.replay().run(Filter()).replayed == LETTERS
    assert stage.events() == ONCE


def test_an_event_that_the_buffer_cannot_take_is_in_no_plan(tmp_path: Path, fresh_name: str) -> None:
    """A plan that cannot be appended would hold up every letter after it, for ever."""
    stage = Stage(tmp_path, fresh_name)
    target = Target(open_store(stage.buffer), MANIFEST)
    target.max_event_bytes = 100

    def fix(letter: StoredLetter) -> Record:
        value = letter.payload or b""
        return Record(value, headers=[("h", b"x" * 100)]) if value == b"3" else Record(value)

    done = Replay(stage.opened(), target, fix).run(Filter())
    assert (done.replayed, done.failed) == (LETTERS - 1, 1)
    assert "118 bytes is too large for the buffer" in done.failures[0][1]
    assert stage.events() == ONCE - Counter({b"3": 1})


def test_keys_and_headers_count_for_the_size_of_a_plan(tmp_path: Path, fresh_name: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    fix = lambda letter: Record(letter.payload or b"", key=b"k" * (5 << 20))  # noqa: E731
    Replay(stage.opened(), Target(open_store(stage.buffer), MANIFEST), fix).run(Filter())
    assert [len(plan.ids) for plan in Ledger(open_store(stage.notes)).plans()] == [2] * 5


def test_a_plan_that_is_done_keeps_no_payloads(tmp_path: Path, fresh_name: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    stage.replay().run(Filter())
    plans = Ledger(open_store(stage.notes)).plans()
    assert [(len(plan.ids), plan.records, plan.is_done) for plan in plans] == [
        (4, (), True),
        (4, (), True),
        (2, (), True),
    ]


@pytest.mark.parametrize("place", ["disk", "objects"])
def test_a_replay_goes_on_when_the_table_is_compacted_under_it(tmp_path: Path, fresh_name: str, place: str) -> None:
    stage = Stage(tmp_path, fresh_name)
    if place == "objects":
        stage.url = f"memory://{fresh_name}-letters"
    table = open_existing_or_new(stage.url)
    for block in range(0 if place == "objects" else 1, 3):
        put_letters(table, [{"payload": b"%d in %d" % (number, block)} for number in range(6)], block)
    letters = sum(batch.num_rows for batch in table.rows())
    running = stage.replay()
    write = running._ledger.write
    compacted: list[int] = []

    def then_compact(*args: Any) -> Any:
        if not compacted:
            compacted.append(table.compact().files_before)
            table.vacuum(0)
        return write(*args)

    running._ledger.write = then_compact  # type: ignore[method-assign,assignment]
    assert running.run(Filter()).replayed == letters
    assert compacted == [3]
    assert max(stage.events().values()) == 1
    assert sum(stage.events().values()) == letters


def open_existing_or_new(url: str) -> ParquetTable:
    return ParquetTable(ObjectBlocks(open_store(url))) if url.startswith("memory:") else open_table(None, url)


def test_the_names_of_letters_that_this_package_had_are_those_of_the_engine() -> None:
    for name in ("Filter", "Ledger", "Replay", "Replayed", "StoredLetter", "Target", "letters_in"):
        assert getattr(penstock.spark, name) is getattr(penstock.engine, name)
