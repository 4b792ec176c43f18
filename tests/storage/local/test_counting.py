"""Compare-and-set between many processes: every increment counts, whichever process is killed meanwhile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import AlreadyExists, Conflict
from penstock.storage.local import LocalStore
from tests.storage.local.writers import StopAt, files_below, increment
from tests.support.processes import Parent, Start, let_go

TOKEN = re.compile(rb"[a-z]+-\d+-\d+")


@pytest.mark.slow
def test_sixteen_processes_of_fifty_increments_each_count_to_eight_hundred(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    store.put("ingest/counter", b"0")
    counting = [start(increment, str(tmp_path), "ingest/counter", 50) for _ in range(16)]
    let_go(counting)
    conflicts = sum(child.answer() for child in counting)

    assert store.get("ingest/counter").data == b"800"
    assert conflicts, "they never met, so this showed nothing"


def leave_tokens(parent: Parent, root: str, name: str) -> tuple[list[bytes], list[bytes]]:
    """Append tokens until the test stops it; return those that were accepted and those that were not."""
    store = LocalStore(root)
    parent.tell("ready")
    accepted: list[bytes] = []
    refused: list[bytes] = []
    while not (len(accepted) >= 10 and parent.wants()):
        token = b"%s-%d-%d" % (name.encode(), len(accepted), len(refused))
        seen = store.get("tokens")
        try:
            store.put_if_match("tokens", seen.data + token + b"\n", seen.version)
            accepted.append(token)
        except Conflict:
            refused.append(token)
    return accepted, refused


def append(store: LocalStore, token: bytes) -> None:
    """Append a token, reading again after each conflict."""
    while True:
        seen = store.get("tokens")
        try:
            store.put_if_match("tokens", seen.data + token + b"\n", seen.version)
        except Conflict:
            continue
        return


def leave_a_token_and_stop(parent: Parent, root: str, token: bytes, step: str) -> None:
    """Append a token, and stop at a step of the write that gets so far."""
    append(LocalStore(root, step=StopAt(parent, step)), token)


def test_no_increment_is_lost_while_holders_of_the_lock_are_killed(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    store.put("tokens", b"")
    steps: list[str] = []
    LocalStore(tmp_path, step=steps.append).put("tokens", b"")
    holding = steps[steps.index("locked") : steps.index("unmarked")]
    moved = holding.index("moved")
    others = [start(leave_tokens, str(tmp_path), f"other{'abcdef'[number]}") for number in range(6)]
    for child in others:
        child.hear()
    accepted: list[bytes] = []
    refused: list[bytes] = []
    killed_before_the_move: list[bytes] = []
    killed_after_the_move: list[bytes] = []

    for number in range(2 * len(holding)):
        index = number % len(holding)
        token = b"victim-%d-0" % number
        victim = start(leave_a_token_and_stop, str(tmp_path), token, holding[index])
        assert victim.hear() == holding[index]
        victim.kill()
        (killed_after_the_move if index >= moved else killed_before_the_move).append(token)
        # The others go on: one more of us gets through after each kill.
        while True:
            mine = b"test-%d-%d" % (number, len(refused))
            seen = store.get("tokens")
            try:
                store.put_if_match("tokens", seen.data + mine + b"\n", seen.version)
                accepted.append(mine)
                break
            except Conflict:
                refused.append(mine)

    for child in others:
        child.tell("stop")
    for child in others:
        theirs_accepted, theirs_refused = child.answer()
        accepted += theirs_accepted
        refused += theirs_refused

    text = store.get("tokens").data
    there = text.split(b"\n")[:-1]
    assert text.endswith(b"\n")
    assert all(TOKEN.fullmatch(token) for token in there)
    assert len(there) == len(set(there))
    # What was reported as done is there, and so is what was moved before its writer died; nothing else is.
    assert set(there) == set(accepted) | set(killed_after_the_move)
    assert not set(there) & (set(refused) | set(killed_before_the_move))
    assert not files_below(str(tmp_path), ".tmp")


def append_tokens(parent: Parent, root: str, name: str, count: int) -> list[bytes]:
    """When the test says so, append so many tokens, reading again after each conflict; return them."""
    store = LocalStore(root)
    parent.tell("ready")
    parent.wait()
    done = []
    for number in range(count):
        token = b"%s-%d-0" % (name.encode(), number)
        append(store, token)
        done.append(token)
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "kills"), [(50, 20), pytest.param(500, 300, marks=[pytest.mark.chaos, pytest.mark.timeout(1200)])]
)
def test_sixteen_processes_lose_no_increment_while_another_is_killed_holding_the_lock_again_and_again(
    tmp_path: Path, start: Start, count: int, kills: int
) -> None:
    store = LocalStore(tmp_path)
    store.put("tokens", b"")
    steps: list[str] = []
    LocalStore(tmp_path, step=steps.append).put("tokens", b"")
    holding = steps[steps.index("locked") : steps.index("unmarked")]
    counting = [start(append_tokens, str(tmp_path), f"other{'abcdefghijklmnop'[n]}", count) for n in range(16)]
    let_go(counting)
    moved = []
    for number in range(kills):
        step = holding[number % len(holding)]
        token = b"victim-%d-0" % number
        victim = start(leave_a_token_and_stop, str(tmp_path), token, step)
        assert victim.hear() == step
        victim.kill()
        moved += [token] if holding.index(step) >= holding.index("moved") else []
    done = [token for child in counting for token in child.answer()]

    there = store.get("tokens").data.split(b"\n")[:-1]
    assert len(done) == 16 * count
    assert sorted(there) == sorted([*done, *moved])


def create(parent: Parent, root: str, name: str, count: int) -> list[str]:
    """When the test says so, create objects in new directories; return those that were created by this process."""
    store = LocalStore(root)
    parent.tell("ready")
    parent.wait()
    created = []
    for number in range(count):
        path = f"new/{number}/deep/object"
        try:
            store.put_if_absent(path, name.encode())
            created.append(path)
        except AlreadyExists:
            assert store.get(path).data
    return created


def test_of_many_processes_that_create_an_object_in_a_new_directory_one_succeeds(tmp_path: Path, start: Start) -> None:
    root = tmp_path / "not" / "there" / "yet"
    racing = {f"racer-{number}": start(create, str(root), f"racer-{number}", 20) for number in range(6)}
    let_go(racing.values())
    created = [(path, name) for name, child in racing.items() for path in child.answer()]

    store = LocalStore(root)
    assert sorted(path for path, _ in created) == sorted(f"new/{number}/deep/object" for number in range(20))
    assert {path: store.get(path).data.decode() for path, _ in created} == dict(created)
