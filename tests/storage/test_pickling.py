"""A store travels to other processes as its URL and options; what cannot travel says so."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.storage import LocalStore, ObjectStore, open_store
from tests.support.servers import BUCKET, S3Server

WITHIN = 60.0  # seconds that another process may take; a hang is a failure, not a wait

# Of a key that opens nothing. `disable_oauth` makes the client use none.
GCS_KEY = json.dumps(
    {
        "gcs_base_url": "http://127.0.0.1:1",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
)


def in_another_process(code: str, *stores: ObjectStore) -> str:
    """Run code in a new Python process, with `store` (and `stores`) unpickled there, and return what it printed."""
    script = f"import os, pickle, sys\nstores = pickle.load(sys.stdin.buffer)\nstore = stores[0]\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(stores), capture_output=True, timeout=WITHIN
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


USE = """
assert store.get("object").data == b"from the parent"
version = store.put_if_match("object", b"from the child", store.head("object").version)
store.put_if_absent("below/new", b"new")
assert sorted(found.path for found in store.list_objects()) == ["below/new", "object"]
print(os.getpid(), version)
"""


@pytest.mark.parametrize("kind", ["disk", "disk-unsynced", "s3", "azure"], indirect=True)
def test_a_pickled_store_works_in_another_process(store: ObjectStore) -> None:
    store.put("object", b"from the parent")
    process, version = in_another_process(USE, store).split(" ", 1)
    assert int(process) != os.getpid()
    assert store.get("object").data == b"from the child"
    assert store.get("object").version == version
    assert store.get("below/new").data == b"new"


@pytest.mark.parametrize("kind", ["memory", "disk", "disk-unsynced", "s3", "azure"], indirect=True)
def test_an_unpickled_store_is_the_same_place_in_this_process(store: ObjectStore) -> None:
    store.put("object", b"content")
    twin = pickle.loads(pickle.dumps(store))
    assert twin is not store
    assert twin.url == store.url
    assert repr(twin) == repr(store)
    assert twin.get("object") == store.get("object")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_carries_a_store(tmp_path: Path, protocol: int) -> None:
    store = open_store(tmp_path)
    assert pickle.loads(pickle.dumps(store, protocol)).url == store.url


def test_a_gcs_store_keeps_its_url_and_options_in_another_process() -> None:
    store = open_store("gs://bucket/prefix", service_account_key=GCS_KEY, allow_http=True, max_retries=3)
    assert in_another_process("print(store.url, repr(store), store.__reduce__()[1], sep='|')", store) == "|".join(
        [store.url, repr(store), str(store.__reduce__()[1])]
    )


def test_a_pickled_store_keeps_its_options(tmp_path: Path, s3_server: S3Server) -> None:
    unsynced = open_store(tmp_path, sync=False)
    cloud = open_store(f"s3://{BUCKET}/x", **s3_server.options, timeout=5, max_retries=2)
    shown = in_another_process("print(*map(repr, stores), sep='|')", unsynced, cloud)
    assert shown == f"{unsynced!r}|{cloud!r}"
    assert "sync=False" in shown
    assert "max_retries=2" in shown


def test_a_pickle_is_small_and_has_no_object_in_it(store: ObjectStore) -> None:
    store.put("object", b"content-of-the-object" * 1000)
    pickled = pickle.dumps(store)
    assert len(pickled) < 2000
    assert b"content-of-the-object" not in pickled


def test_a_local_store_that_was_opened_by_a_relative_path_is_the_same_place_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("store")
    store.put("object", b"content")
    assert in_another_process("os.chdir('/'); print(store.get('object').data.decode())", store) == "content"


# Memory does not travel


def test_a_memory_store_refuses_to_be_unpickled_in_another_process(fresh_name: str) -> None:
    store = open_store(f"memory://{fresh_name}")
    store.put("object", b"content")
    code = """
import pickle, sys
from penstock.errors import InvalidInput
try:
    store = pickle.load(sys.stdin.buffer)
except InvalidInput as error:
    print(error)
else:
    print("it was unpickled:", store)
"""
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, timeout=WITHIN)
    refusal = done.stdout.decode()
    assert f"memory://{fresh_name}" in refusal
    assert "file:///" in refusal
    assert "bucket" in refusal


# After a fork. The parents of these forks are processes of their own: this one has threads, and would warn.

FORK = """
import os, signal, sys, traceback

def in_a_fork(work):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)  # a hang ends the child, and its parent says so
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        print("the child hung, and was killed by signal", os.WTERMSIG(status))
"""


def after_a_fork(code: str, store: ObjectStore) -> str:
    return in_another_process(FORK + code, store)


USES = [
    "store.get('object')",
    "store.head('object')",
    "store.put('object', b'')",
    "store.put_if_absent('new', b'')",
    "store.put_if_match('object', b'', '1')",
    "list(store.list_objects())",
]


@pytest.mark.parametrize("kind", ["s3", "azure"], indirect=True)
def test_a_cloud_store_refuses_at_once_to_be_used_after_a_fork(store: ObjectStore) -> None:
    store.put("object", b"content")
    uses = [*USES, "print('StorageError', store.delete(['object'])[0].error)", "pickle.loads(pickled).get('object')"]
    code = "store.get('object')\npickled = pickle.dumps(store)\n"
    printed = after_a_fork(code + "\n".join(f"in_a_fork(lambda: {use})" for use in uses), store).splitlines()
    assert len(printed) == len(uses)
    for use, line in zip(uses, printed, strict=True):
        assert line.startswith("StorageError "), (use, line)
        assert "forked" in line, (use, line)
        assert "spawn" in line, (use, line)
    assert store.get("object").data == b"content"


@pytest.mark.parametrize("kind", ["s3", "azure"], indirect=True)
def test_a_cloud_store_works_in_a_fork_from_before_its_first_use_and_in_the_parent(store: ObjectStore) -> None:
    store.put("object", b"content")
    code = "in_a_fork(lambda: print(store.get('object').data.decode()))\nstore.get('object')\nin_a_fork(lambda: None)\n"
    assert after_a_fork(code + "print(store.get('object').data.decode())", store) == "content\ncontent"


@pytest.mark.parametrize("kind", ["disk", "disk-unsynced"], indirect=True)
def test_a_local_store_works_in_a_forked_child(store: ObjectStore) -> None:
    store.put("object", b"from the parent")
    code = """
store.put_if_match("object", b"before the fork", store.get("object").version)
in_a_fork(lambda: print(store.put_if_match("object", b"from the fork", store.get("object").version)))
print(store.get("object").version)
"""
    in_the_child, in_the_parent = after_a_fork(code, store).splitlines()
    assert in_the_child == in_the_parent == store.get("object").version
    assert store.get("object").data == b"from the fork"


def test_a_memory_store_refuses_to_be_used_in_a_forked_child(tmp_path: Path) -> None:
    uses = [*USES, "store.delete(['object'])", "pickle.loads(pickled)"]
    code = """
from penstock.storage import open_store
store = open_store("memory://parent")
store.put("object", b"content")
pickled = pickle.dumps(store)
"""
    code += "\n".join(f"in_a_fork(lambda: {use})" for use in uses) + "\nprint(store.get('object').data.decode())"
    *in_children, in_the_parent = after_a_fork(code, LocalStore(tmp_path)).splitlines()
    assert len(in_children) == len(uses)
    for use, line in zip(uses, in_children, strict=True):
        assert line.startswith("InvalidInput "), (use, line)
        assert "memory://parent" in line, (use, line)
        assert "file:///" in line, (use, line)
    assert in_the_parent == "content"


def test_a_pickle_of_a_memory_store_from_a_process_that_is_gone_is_refused_here() -> None:
    code = """
import pickle, sys
from penstock.storage import open_store
sys.stdout.buffer.write(pickle.dumps(open_store("memory://gone")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=WITHIN, check=True)
    with pytest.raises(InvalidInput, match="memory://gone"):
        pickle.loads(done.stdout)
