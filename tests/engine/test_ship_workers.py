"""`ship` on a folder of workers' queues: beside live workers it ships and removes what dead ones left."""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock import DurableEventQueue, open_store
from penstock.engine import Shipper, ship, shipping
from penstock.errors import CorruptData, NotFound
from penstock.queue import queues_in
from tests.support.buffer_contents import entries
from tests.support.killed_commands import KILLED, Command, KilledCommands, killed_commands
from tests.support.permissions import as_an_ordinary_user
from tests.support.processes import Child, Parent, Start
from tests.support.waiting import Background, wait_until

FOLDER_MARK = "penstock-workers"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queues"


@pytest.fixture
def buffer(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


@pytest.fixture
def stop() -> Iterator[Event]:
    stop = Event()
    yield stop
    stop.set()


def dead_queues(folder: Path, *events: bytes) -> list[str]:
    """For each event the queue of a worker that has ended."""
    queues = [DurableEventQueue.for_worker(folder) for _ in events]
    for queue, event in zip(queues, events, strict=True):
        queue.push(event)
    for queue in queues:
        queue.close()
    return [queue.path for queue in queues]


def live(parent: Parent, folder: str, *events: bytes) -> None:
    queue = DurableEventQueue.for_worker(folder)
    queue.push_many(events)
    parent.tell(queue.path)
    parent.wait()


def shipped(buffer: Path) -> list[bytes]:
    return sorted(entries(open_store(buffer)))


# --- what is shipped and removed


def test_queues_of_dead_workers_are_shipped_and_removed_and_live_ones_left(
    folder: Path, buffer: Path, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.engine.shipping")
    alive, killed = (start(live, str(folder), event) for event in (b"stays", b"killed"))
    path, _ = alive.hear(), killed.hear()
    dead_queues(folder, b"one", b"two")
    with DurableEventQueue(folder / "own") as own:
        own.push(b"three")
    killed.kill()
    before = sorted(os.listdir(path))
    assert ship(folder, buffer, until_idle=True).processed == 4
    assert shipped(buffer) == [b"killed", b"one", b"three", b"two"]
    assert sorted(os.listdir(folder)) == sorted(["own", FOLDER_MARK, Path(path).name])
    assert sorted(os.listdir(path)) == before
    assert f"the queue in {path} is left to its worker" in caplog.text
    alive.kill()
    assert ship(folder, buffer, until_idle=True).processed == 1


def test_a_live_worker_is_logged_once_and_its_queue_shipped_when_it_dies(
    folder: Path, buffer: Path, start: Start, stop: Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.engine.shipping")
    worker = start(live, str(folder), b"event")
    path = worker.hear()
    looks = itertools.count()

    class QuickStop(Event):
        def wait(self, timeout: float | None = None) -> bool:
            next(looks)
            return super().wait(0.005 if timeout else timeout)

    stop = QuickStop()
    shipper = Background(lambda: ship(folder, buffer, stop=stop))
    wait_until(lambda: next(looks) > 20)
    worker.kill()
    wait_until(lambda: not os.path.exists(path))
    stop.set()
    assert shipper.result().processed == 1
    assert [record.levelno for record in caplog.records if "is left to its worker" in record.message] == [logging.INFO]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_until_idle_a_folder_whose_queues_are_all_removed_is_no_error(folder: Path, buffer: Path) -> None:
    dead_queues(folder, b"one")
    assert [ship(folder, buffer, until_idle=True).processed for _ in range(2)] == [1, 0]
    (folder / FOLDER_MARK).unlink()
    with pytest.raises(NotFound):
        ship(folder, buffer, until_idle=True)


def test_a_damaged_queue_stays_and_is_an_error_after_the_others_were_shipped(
    folder: Path, buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = dead_queues(folder, b"one", b"two", b"three")
    (Path(paths[1]) / "penstock-mark").unlink()
    before = sorted(os.listdir(paths[1]))
    with pytest.raises(CorruptData, match=Path(paths[1]).name):
        ship(folder, buffer, until_idle=True)
    assert shipped(buffer) == [b"one", b"three"]
    assert (queues_in(folder), sorted(os.listdir(paths[1]))) == ([paths[1]], before)


def test_each_queue_that_cannot_be_shipped_is_named(
    folder: Path, buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, linked, locked, _ = map(Path, sorted(dead_queues(folder, b"a", b"b", b"c", b"d")))
    (damaged / "penstock-mark").unlink()
    (linked / "penstock-lock").unlink()
    (linked / "penstock-lock").symlink_to("/dev/null")
    locked.chmod(0o000)
    with as_an_ordinary_user(), pytest.raises(CorruptData, match=damaged.name):
        ship(folder, buffer, until_idle=True)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [path.name for path in (damaged, linked, locked) for one in warnings if path.name in one] == [
        linked.name,
        locked.name,
    ], "the first one is raised"
    assert len(shipped(buffer)) == 1
    assert queues_in(folder) == [str(damaged), str(linked), str(locked)]


def test_a_queue_that_was_repaired_is_drained_and_stays(
    folder: Path, buffer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its damaged files may still be of use."""
    (path,) = dead_queues(folder, b"one")
    (Path(path) / "penstock-mark").unlink()
    DurableEventQueue(path, skip_corrupt=True).close()
    assert ship(folder, buffer, until_idle=True).processed == 1
    assert (Path(path) / "damaged-1").is_dir()
    assert "it also has damaged-1" in caplog.text


def test_what_a_kill_left_of_a_removal_or_of_a_start_is_removed(folder: Path, buffer: Path) -> None:
    removed, begun = dead_queues(folder, b"a", b"b")
    ship(folder, buffer, until_idle=True)
    os.mkdir(f"{removed}.removed")
    os.mkdir(begun)
    assert ship(folder, buffer, until_idle=True).processed == 0
    assert os.listdir(folder) == [FOLDER_MARK]


def ship_folder(_: Parent, folder: str, buffer: str) -> int:
    return ship(folder, buffer, until_idle=True).processed


def test_two_shippers_on_one_folder_share_the_queues(folder: Path, buffer: Path, start: Start) -> None:
    events = [b"%d" % number for number in range(12)]
    dead_queues(folder, *events)
    shippers = [start(ship_folder, str(folder), str(buffer)) for _ in range(2)]
    assert sum(shipper.answer() for shipper in shippers) == len(events)
    ship(folder, buffer, until_idle=True)  # of one that the other had open there may be an empty directory
    assert shipped(buffer) == sorted(events)
    assert os.listdir(folder) == [FOLDER_MARK]


def test_a_queue_that_another_shipper_has_removed_is_not_made_anew(
    folder: Path, buffer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.engine.shipping")
    places = dead_queues(folder, b"one", b"two")
    monkeypatch.setattr(shipping, "queues_in", lambda _: places)
    assert ship(folder, buffer, until_idle=True).processed == 2
    assert ship(folder, buffer, until_idle=True).processed == 0
    assert os.listdir(folder) == [FOLDER_MARK]
    assert "is left to its worker" not in caplog.text


def test_a_worker_that_starts_while_a_queue_is_removed_gets_another_one(
    folder: Path, buffer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = dead_queues(folder, b"event")
    opened = []
    rename = os.rename

    def rename_beside_workers(*args: Any, **more: Any) -> None:
        if args[0] == path:
            opened.append(DurableEventQueue.for_worker(folder))
        rename(*args, **more)
        if args[0] == path:
            opened.append(DurableEventQueue.for_worker(folder))

    monkeypatch.setattr(os, "rename", rename_beside_workers)
    ship(folder, buffer, until_idle=True)
    assert not os.path.exists(path)
    assert len({queue.path for queue in opened} - {path}) == len(opened) == 2
    for queue in opened:
        assert queue.push(b"event").id == 0
        queue.close()


# --- kills


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[KilledCommands]:
    with killed_commands(tmp_path) as running:
        yield running


@pytest.mark.parametrize("each", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.chaos)])
@pytest.mark.timeout(600)
def test_a_shipper_that_is_killed_at_any_call_loses_nothing_and_the_next_one_removes_all(
    each: int, tmp_path: Path, commands: KilledCommands
) -> None:
    """Each event is in the buffer once, or twice if it was in the block that was under way."""
    twice = kills = removals = 0
    for call in itertools.count(0, each):
        folder, buffer = tmp_path / str(call) / "queues", tmp_path / str(call) / "buffer"
        dead_queues(folder, b"one", b"two")
        words = ("ship", str(folder), str(buffer), "--until-idle")
        (status,) = commands.run(Command(words, at_call=call))
        assert status in (0, KILLED), commands.output()
        removals += any(name.endswith(".removed") for name in os.listdir(folder))
        commands.finish(*words)
        found = Counter(shipped(buffer))
        assert set(found) == {b"one", b"two"}
        assert max(found.values()) <= 2
        assert found.total() <= 3, "a kill meets one block"
        assert os.listdir(folder) == [FOLDER_MARK]
        if status == 0:
            break
        kills += 1
        twice += found.total() == 3
    print(f"{kills} kills; after {twice} an event came again, after {removals} a removal was half done")
    assert kills > 60 / each
    assert twice or each > 1, "no kill came between the manifest and the ack"
    assert removals


def work(parent: Parent, folder: str, buffer: str, name: int) -> None:
    """A worker as a server runs it: it pushes, and ships its own queue, until it is killed. It reports its pushes."""
    with DurableEventQueue.for_worker(folder) as queue, Shipper(queue, buffer):
        for number in itertools.count():
            events = [b"%d.%d.%d" % (name, number, one) for one in range(random.Random(number).choice((1, 2, 10)))]
            queue.push_many(events)
            parent.tell(events)
            time.sleep(0.002)  # a request


def ship_beside(parent: Parent, folder: str, buffer: str) -> None:
    parent.tell("ships")
    ship(folder, buffer)


class Server:
    """Workers that are killed and started again, and a shipper beside them that is killed too."""

    def __init__(self, folder: Path, buffer: Path, start: Start, seed: int) -> None:
        self.pushed = set[bytes]()
        self._places = str(folder), str(buffer)
        self._start = start
        self._dice = random.Random(seed)
        self._names = itertools.count()
        self._workers = [self._worker() for _ in range(3)]
        self._shipper = start(ship_beside, *self._places)

    def _worker(self) -> Child:
        return self._start(work, *self._places, next(self._names))

    def kill_one(self) -> None:
        for worker in self._workers:
            for _ in range(self._dice.randrange(1, 15)):
                self.pushed.update(worker.hear())
        if self._dice.random() < 0.3:
            self._shipper.kill()
            self._shipper = self._start(ship_beside, *self._places)
        else:
            at = self._dice.randrange(3)
            self._end(self._workers[at])
            self._workers[at] = self._worker()

    def end(self) -> None:
        for worker in self._workers:
            self._end(worker)
        self._shipper.kill()

    def _end(self, worker: Child) -> None:
        worker.kill()
        while True:
            try:
                self.pushed.update(worker.hear())
            except (EOFError, OSError):  # the end of the pipe, or the middle of a message
                return


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(40, 1, marks=pytest.mark.slow),
        *[pytest.param(300, seed, marks=pytest.mark.chaos) for seed in (2, 3)],
    ],
)
@pytest.mark.timeout(900)
def test_workers_and_a_shipper_that_are_killed_over_and_over_lose_nothing(
    kills: int, seed: int, folder: Path, buffer: Path, start: Start
) -> None:
    server = Server(folder, buffer, start, seed)
    for _ in range(kills):
        server.kill_one()
    server.end()
    left = len(queues_in(folder))
    ship(folder, buffer, until_idle=True)
    assert os.listdir(folder) == [FOLDER_MARK]
    found = Counter(shipped(buffer))
    repeated = sum(count - 1 for count in found.values())
    print(f"{kills} kills, {len(server.pushed)} events, {left} queues in the end, {repeated} events came again")
    assert server.pushed <= set(found), "an event is lost"
    assert left <= 4, "workers do not go on with the queues of dead ones"
    assert max(found.values()) <= kills + 1
