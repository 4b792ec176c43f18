"""The local disk: ours beside a bare loop of system calls, and beside `obstore`'s local store.

`obstore`'s neither syncs nor compares versions, so it is the ceiling of what leaving both out would give; the bare
loop does the same syncs as ours and no more: what locks, versions and the store's clock cost is the difference.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from obstore.store import LocalStore as EngineStore

from bench.side_by_side import Contest, show
from penstock.storage import LocalStore

KIB, MIB = 1024, 1024 * 1024


def bare_put(root: Path, name: str, data: bytes) -> None:
    temporary = os.open(root / "bare.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(temporary, data)
    os.fsync(temporary)
    os.close(temporary)
    os.rename(root / "bare.tmp", root / name)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def bare_get(root: Path, name: str) -> bytes:
    with (root / name).open("rb", buffering=0) as source:
        return source.readall()


def puts(put: Callable[[str, bytes], object], data: bytes) -> Callable[[int], None]:
    def work(size: int) -> None:
        for number in range(size):
            put(f"put-{number}", data)

    return work


def gets(get: Callable[[str], object], name: str) -> Callable[[int], None]:
    def work(size: int) -> None:
        for _ in range(size):
            get(name)

    return work


def compare_and_sets(store: LocalStore) -> Callable[[int], None]:
    store.put("counter", b"0")

    def work(size: int) -> None:
        for _ in range(size):
            found = store.get("counter")
            store.put_if_match("counter", b"%d" % (int(found.data) + 1), found.version)

    return work


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        root = Path(directory)
        folders = {name: root / name for name in ("ours", "unsynced", "bare", "engine")}
        for folder in folders.values():
            folder.mkdir()
        ours, unsynced = LocalStore(folders["ours"]), LocalStore(folders["unsynced"], sync=False)
        engine = EngineStore(folders["engine"])
        bare = folders["bare"]
        contests = []
        for label, size, times in (("1 KiB", KIB, 200), ("1 MiB", MIB, 40), ("16 MiB", 16 * MIB, 6)):
            data = os.urandom(size)
            name = f"read-{size}"
            ours.put(name, data)
            bare_put(bare, name, data)
            engine.put(name, data)
            contests += [
                Contest(
                    f"put {label}, durable",
                    times,
                    {
                        "penstock": puts(ours.put, data),
                        "bare write, fsync, rename, fsync": puts(lambda n, d: bare_put(bare, n, d), data),
                    },
                ),
                Contest(
                    f"put {label}, not synced",
                    times,
                    {
                        "penstock, sync=False": puts(unsynced.put, data),
                        "obstore's local store": puts(engine.put, data),
                    },
                ),
                Contest(
                    f"get {label}",
                    times * 5,
                    {
                        "penstock": gets(ours.get, name),
                        "bare open, read": gets(lambda n: bare_get(bare, n), name),
                        "obstore's local store": gets(lambda n: bytes(engine.get(n).bytes()), name),
                    },
                ),
            ]
        contests.append(
            Contest("get and compare-and-set, durable", 200, {"penstock": compare_and_sets(ours)}),
        )
        show("Local disk, one process; medians of 5 rounds in turns", contests)
