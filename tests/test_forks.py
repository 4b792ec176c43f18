"""What a forked child can do with what its parent has open: it works there, or refuses at once, and never hangs.

`docs/design/forks.md` has the list, and the reasons.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, ConsumerConfig, Producer, ProducerConfig, open_store
from penstock.engine import BatchEngine, EngineConfig, WorkBatch
from penstock.errors import InvalidInput, PenstockError
from penstock.records import Record
from tests.support.buffer_contents import entries
from tests.support.forked_objects import CASES, ended, fill, locks_held
from tests.support.processes import PATIENCE, Parent, Start, in_forked_child
from tests.support.repository import ROOT
from tests.support.waiting import NEVER

# A thread that holds the lock of an engine is one that runs it, which is a case of its own.
LOCKED = [
    pytest.param(name, marks=[] if name == "Producer" else pytest.mark.slow) for name in CASES if name != "BatchEngine"
]


def use_in_children(parent: Parent, folder: str, name: str, locked: bool) -> tuple[dict[str, str], object]:
    """Make an object, and use it in every way, each in a child of its own.

    Return what was raised in each, and what the parent finds afterwards. With `locked` a thread of the parent holds
    every lock of the object at each fork.
    """
    case = CASES[name]
    item = case.make(Path(folder))
    with locks_held(item) if locked else nullcontext():
        raised = {use: in_forked_child(partial(work, item)) for use, work in {**case.refused, **case.works}.items()}
    return raised, case.after(item)


def check(name: str, raised: dict[str, str], after: object) -> None:
    case = CASES[name]
    for use in case.refused:
        assert raised[use].startswith("InvalidInput: "), (use, raised[use])
        assert "forked child" in raised[use] or "lives in the process that made it" in raised[use], (use, raised[use])
    assert {use: raised[use] for use in case.works} == dict.fromkeys(case.works, "nothing was raised")
    assert after == case.expected


@pytest.mark.parametrize("name", CASES)
def test_a_child_uses_what_it_may_and_is_refused_the_rest_at_once(start: Start, tmp_path: Path, name: str) -> None:
    check(name, *start(use_in_children, str(tmp_path), name, False).answer())


@pytest.mark.parametrize("name", LOCKED)
def test_it_is_the_same_while_a_thread_of_the_parent_holds_every_lock(start: Start, tmp_path: Path, name: str) -> None:
    check(name, *start(use_in_children, str(tmp_path), name, True).answer())


def answer_of_program(folder: Path, how: str) -> Any:
    command = [sys.executable, "-m", "tests.support.forked_objects", str(folder), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["status"] == 0, done.stderr
    assert answer["after"] == {name: repr(case.expected) for name, case in CASES.items()}
    return answer


def test_a_child_that_ends_as_any_program_does_leaves_everything_to_its_parent(tmp_path: Path) -> None:
    answer_of_program(tmp_path, "fork")


def test_a_child_of_multiprocessing_is_refused_the_same_and_ends(tmp_path: Path) -> None:
    answers = answer_of_program(tmp_path, "multiprocessing")["answers"]
    assert set(answers.values()) == {"InvalidInput"}, answers
    assert len(answers) == sum(len(case.refused) for case in CASES.values())


def ack_in_child(parent: Parent, place: str) -> tuple[str, int, list[bytes]]:
    """Parent and child hold one batch each, and the child acks; return what comes when the parent dies then."""
    fill(Path(place), [b"parent's"], [b"child's"])
    consumer = Consumer(place, ConsumerConfig(gc=False))
    mine = consumer.next_batch()
    assert mine is not None

    def work() -> None:
        batch = consumer.next_batch()
        assert batch is not None
        batch.ack()

    raised = in_forked_child(work)
    again = [payload for batch in Consumer(place, ConsumerConfig(gc=False)) for payload in batch.entries]
    return raised, mine.sequence, again


def test_a_childs_ack_never_covers_what_its_parent_has_not_done(start: Start, tmp_path: Path) -> None:
    raised, sequence, again = start(ack_in_child, str(tmp_path)).answer()
    assert "make a Consumer here, which takes over the group" in raised
    assert (sequence, again) == (0, [b"parent's", b"child's"])


def take_over_in_child(parent: Parent, place: str) -> tuple[str, str]:
    fill(Path(place), [b"a"], [b"b"])
    consumer = Consumer(place, ConsumerConfig(gc=False))
    consumer.next_batch()

    def work() -> None:
        with Consumer(place, ConsumerConfig(gc=False)) as own:
            assert [batch.sequence for batch in own] == [0, 1]
            own.ack_through(1)

    raised = in_forked_child(work)
    try:
        consumer.ack_through(0)
    except PenstockError as error:
        return raised, type(error).__name__
    return raised, "nothing"


def test_a_consumer_made_in_the_child_takes_over_as_any_other(start: Start, tmp_path: Path) -> None:
    assert start(take_over_in_child, str(tmp_path)).answer() == ("nothing was raised", "Fenced")


def produce_anew_in_child(parent: Parent, place: str) -> tuple[str, list[bytes]]:
    def work() -> None:
        with pytest.raises(InvalidInput, match="make a Producer here"):
            producer.produce(b"refused")
        with Producer(place) as own:
            own.produce(b"child's")

    with Producer(place, ProducerConfig(flush_interval=NEVER)) as producer:
        producer.produce(b"parent's")
        raised = in_forked_child(work)
    return raised, entries(open_store(place))


def test_a_producer_made_in_the_child_works_as_any_other(start: Start, tmp_path: Path) -> None:
    assert start(produce_anew_in_child, str(tmp_path)).answer() == ("nothing was raised", [b"child's", b"parent's"])


class Remembering:
    """A receiver of a user's own, which does not look at processes. It writes down what is done to it."""

    healthy = True

    def __init__(self, log: Path) -> None:
        self._log = log
        self._is_received = False

    def recv(self, max_records: int, max_bytes: int | None = None, timeout: float = 0.1) -> WorkBatch:
        if self._is_received:
            return WorkBatch(())
        self._is_received = True
        return WorkBatch([Record(b"a")], commit_tokens=(0,))

    def commit(self, tokens: Any) -> None:
        self._note("commit")

    def rewind(self) -> None:
        self._note("rewind")

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{what}\n")


def fork_in_sink(parent: Parent, folder: str) -> tuple[str, str, list[str]]:
    """Fork in a sink: the child returns into the loop as the parent does. Return how both runs ended, and the log."""
    log, home, children = Path(folder) / "log", os.getpid(), list[int]()
    ours, theirs = os.pipe()
    engine = BatchEngine(EngineConfig(recv_timeout=0))
    answers = "nothing was raised"
    try:
        engine.run(Remembering(log), lambda batch: batch, lambda _: children.append(os.fork()), until_idle=True)
    except BaseException as error:
        answers = f"{type(error).__name__}: {error}"
    if os.getpid() != home:
        os.write(theirs, answers.encode())
        os._exit(0)
    assert ended(children[0]) == 0
    return os.read(ours, 65536).decode(), answers, log.read_text().splitlines()


def test_a_child_that_is_forked_in_a_sink_and_returns_into_the_loop_commits_nothing(
    start: Start, tmp_path: Path
) -> None:
    in_child, in_parent, log = start(fork_in_sink, str(tmp_path)).answer()
    assert in_child.startswith("CommitFailed: ")
    assert "a child that was forked during the block" in in_child
    assert in_parent == "nothing was raised"
    assert log == ["commit"]


IMPORTS_OF_THREADS = """
import sys, tempfile, threading
from pathlib import Path

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name)

from penstock import Consumer, ConsumerConfig, Producer
from penstock.engine import BufferReceiver
from penstock.metalog import ObjectMetadataLog

place = Path(tempfile.mkdtemp(dir=sys.argv[1]))
sys.meta_path.insert(0, Watch())
with Producer(place / "buffer") as producer:
    producer.produce(b"a").result(60)
with Consumer(place / "buffer", ConsumerConfig(gc_interval=0.01)) as consumer:
    consumer.next_batch().ack()
with BufferReceiver(place / "buffer") as receiver:
    receiver.recv(1, timeout=0)
with ObjectMetadataLog(place / "log", 1) as log:
    log.publish(0, b"a")
"""


def test_a_background_thread_imports_nothing(tmp_path: Path) -> None:
    """A child that is forked during an import in another thread waits for ever where it imports the same module."""
    command = [sys.executable, "-c", IMPORTS_OF_THREADS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
