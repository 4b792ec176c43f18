"""The reserve: the few writes that may use it work on a full disk, again and again, and no other write touches it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import Conflict, InvalidInput, StorageError
from penstock.storage import ObjectStore, Reserve, replace_with_reserve
from penstock.storage.local import LocalStore
from penstock.storage.local.folder import stripe_of
from penstock.storage.object_store import Data
from penstock.testing import Fault, FaultyStore
from tests.storage.local.writers import StopAt, contents_of, files_below, read_unlisted
from tests.support.minimal_stores import ThinStore
from tests.support.processes import Parent, Start, let_go
from tests.support.repository import ROOT

Mount = Callable[[str], Path]
NOTE = ROOT / "docs" / "design" / "local-disk.md"
PATH = "ingest/manifest"
KIB = 1 << 10
OLD = b"old " * 5_000
OTHER_USER = 65_534


class FullDisk:
    """A small file system, with an object and its reserve on it, that another program fills."""

    def __init__(self, point: Path, full: str) -> None:
        self.point = point
        self.root = str(point / "store")
        self._full = full
        self._filler = point / "filler"
        self._filler.mkdir()
        self.version = LocalStore(self.root).put_if_absent(PATH, OLD, reserve=Reserve.KEEP)
        self.fill()

    def fill(self) -> None:
        """Take what is free: every byte, or every inode."""
        number = len(os.listdir(self._filler))
        with suppress(OSError):
            while self._full == "no inode":
                (self._filler / f"{number}").touch()
                number += 1
        for size in (64 * KIB, 1) if self._full == "no byte" else ():
            with suppress(OSError), (self._filler / "bytes").open("ab", buffering=0) as filler:
                while filler.write(b"x" * size):
                    pass
        found = os.statvfs(self.point)
        assert (found.f_favail if self._full == "no inode" else found.f_bavail) == 0

    def spares(self) -> set[str]:
        """The spares that are there."""
        return {os.path.basename(path) for path in files_below(self.root) if "/reserve-" in path}


@pytest.fixture(params=["no byte", "no inode"])
def disk(request: pytest.FixtureRequest, mount: Mount) -> FullDisk:
    return FullDisk(mount("size=3m,nr_inodes=100"), request.param)


def use(store: ObjectStore, data: Data) -> str:
    """Replace the object at its current version, from the reserve if need be."""
    return replace_with_reserve(store, PATH, data, store.head(PATH).version, Reserve.USE)


def test_a_write_that_may_use_the_reserve_works_on_a_full_disk_and_any_other_fails(disk: FullDisk) -> None:
    store = LocalStore(disk.root)
    writes: list[Callable[[], str]] = [
        lambda: store.put(PATH, b"new"),
        lambda: store.put_if_match(PATH, b"new", disk.version),
        lambda: store.put_if_match(PATH, b"new", disk.version, reserve=Reserve.KEEP),
        lambda: store.put_if_absent("ingest/other", b"new"),
    ]
    for write in writes:
        with pytest.raises(StorageError, match=r"the disk is full \(.*\b0 (KiB|inodes)"):
            write()
    assert store.put_if_match(PATH, b"new", disk.version, reserve=Reserve.USE) == store.head(PATH).version
    assert contents_of(disk.root) == {PATH: b"new"}


def test_the_reserve_is_full_again_after_each_write_though_others_take_all_that_is_free(disk: FullDisk) -> None:
    before, versions = disk.spares(), {disk.version}
    for number in range(50):  # by a store that is opened anew, as by another process
        versions.add(use(LocalStore(disk.root), b"%d " % number * 5_000))
        disk.fill()
        assert disk.spares() == before
    assert len(versions) == 51, "no version comes again, though inodes do"
    assert contents_of(disk.root) == {PATH: b"49 " * 5_000}


def test_a_write_from_the_reserve_is_still_a_compare_and_set(disk: FullDisk) -> None:
    store = LocalStore(disk.root)
    use(store, b"first")
    with pytest.raises(Conflict):
        store.put_if_match(PATH, b"lost", disk.version, reserve=Reserve.USE)
    assert store.get(PATH).data == b"first"


def test_a_reader_that_has_an_object_open_keeps_it_whole_through_any_number_of_writes(disk: FullDisk) -> None:
    store = LocalStore(disk.root)
    with open(os.path.join(disk.root, PATH), "rb", buffering=0) as reader:
        first = reader.read(10)
        for number in range(6):
            use(store, b"%d" % number * 20_000)
        assert first + reader.read() == OLD


def test_spares_are_neither_listed_nor_reached_as_objects(disk: FullDisk) -> None:
    store = LocalStore(disk.root)
    use(store, b"new")
    assert [meta.path for meta in store.list_objects()] == [PATH]
    for name in disk.spares():
        with pytest.raises(InvalidInput, match="refused"):
            store.get(f"ingest/.penstock/{name}")


def test_a_write_that_fits_no_spare_fails_and_leaves_the_old_object(mount: Mount) -> None:
    disk = FullDisk(mount("size=3m"), "no byte")
    with pytest.raises(StorageError, match="the disk is full"):
        use(LocalStore(disk.root), b"x" * 2_000_000)
    assert contents_of(disk.root) == {PATH: OLD}
    use(LocalStore(disk.root), b"fits")
    assert contents_of(disk.root) == {PATH: b"fits"}


def test_a_full_disk_without_a_reserve_is_a_clear_error(mount: Mount) -> None:
    point = mount("size=1m")
    store = LocalStore(point / "store")
    version = store.put(PATH, OLD)
    with suppress(OSError), (point / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4 * KIB):
            pass
    with pytest.raises(StorageError, match="the disk is full"):
        store.put_if_match(PATH, b"new" * 10_000, version, reserve=Reserve.USE)
    assert contents_of(str(point / "store")) == {PATH: OLD}


def test_a_faulty_store_hands_the_reserve_on(disk: FullDisk) -> None:
    store = FaultyStore(LocalStore(disk.root), rates={})
    use(store, b"new")
    store.inject(Fault.ERROR_AFTER)
    with pytest.raises(StorageError):
        use(store, b"newer")
    assert store.get(PATH).data == b"newer"


def test_objects_that_other_programs_put_there_are_deleted_on_a_full_disk(disk: FullDisk) -> None:
    own_stripe = stripe_of("manifest")
    names = [name for name in map(str, range(100)) if stripe_of(name) != own_stripe][:3]
    for name in names:
        os.rename(next((disk.point / "filler").iterdir()), os.path.join(disk.root, "ingest", name))
        disk.fill()
    for name in names:
        (result,) = LocalStore(disk.root).delete([f"ingest/{name}"])
        assert result.ok, result.error
    use(LocalStore(disk.root), b"new")
    assert contents_of(disk.root) == {PATH: b"new"}


def use_and_stop(parent: Parent, root: str, data: bytes, step: str, occurrence: int) -> None:
    """Replace the object from the reserve, and stop at a step of that."""
    use(LocalStore(root, step=StopAt(parent, step, occurrence)), data)


def steps_of_use(disk: FullDisk) -> list[str]:
    """The steps of a write from the reserve that nothing happens to."""
    steps: list[str] = []
    use(LocalStore(disk.root, step=steps.append), OLD)
    return steps


def test_a_writer_killed_at_any_step_of_a_full_disk_leaves_an_object_that_is_whole_and_a_reserve_that_is_full(
    disk: FullDisk, start: Start
) -> None:
    steps = steps_of_use(disk)
    assert {"reserve locked", "spare opened", "moved", "spare allocated", "reserve filled"} <= set(steps)
    before, outcomes = OLD, []
    for number, step in enumerate(steps):
        new = b"%d " % number * 6_000
        victim = start(use_and_stop, disk.root, new, step, steps[: number + 1].count(step))
        assert victim.hear() == step
        victim.kill()

        (seen,) = read_unlisted(disk.root).values()
        assert seen in (before, new), step
        outcomes.append(seen == new)
        assert [meta.path for meta in LocalStore(disk.root).list_objects()] == [PATH]

        before = b"next %d " % number * 6_000
        use(LocalStore(disk.root), before)
        disk.fill()
        assert contents_of(disk.root) == {PATH: before}, step
        assert len(disk.spares()) == 4, step
        assert not files_below(disk.root, ".tmp"), step
    assert outcomes == sorted(outcomes)
    assert steps[outcomes.index(True)] == "moved"


def test_the_design_note_names_every_step_of_a_write_from_the_reserve(disk: FullDisk) -> None:
    named = set(re.findall(r"`([a-z ]+)`", NOTE.read_text()))
    assert set(steps_of_use(disk)) - named == set()


def count_up(parent: Parent, root: str, times: int) -> None:
    """After a signal of the test, count the object up from the reserve."""
    store = LocalStore(root)
    parent.tell("ready")
    parent.wait()
    for _ in range(times):
        while True:
            seen = store.get(PATH)
            with suppress(Conflict):
                number = int(seen.data.split(b" ")[0]) + 1
                store.put_if_match(PATH, b"%d " % number * 2_000, seen.version, reserve=Reserve.USE)
                break


def produce_until_stopped(parent: Parent, root: str) -> tuple[int, int]:
    """Write small objects to one directory until one was refused and the test stops it; return how many of each."""
    store, written, refused = LocalStore(root), 0, 0
    parent.tell("ready")
    parent.wait()
    while not refused or not parent.wants():
        try:
            store.put(f"ingest/data-{os.getpid()}-{written}", b"small")
            written += 1
        except StorageError:
            refused += 1
    return written, refused


def test_processes_that_write_from_the_reserve_lose_nothing_beside_one_that_writes_until_it_is_refused(
    disk: FullDisk, start: Start
) -> None:
    use(LocalStore(disk.root), b"0 " * 2_000)
    greedy = start(produce_until_stopped, disk.root)
    counting = [start(count_up, disk.root, 25) for _ in range(4)]
    let_go([greedy, *counting])
    for child in counting:
        child.answer()
    greedy.tell("stop")
    written, refused = greedy.answer()

    assert LocalStore(disk.root).get(PATH).data == b"100 " * 2_000
    assert refused, "it was never refused, so this showed nothing"
    assert len(contents_of(disk.root)) == 1 + written


def use_again(parent: Parent, root: str, times: int) -> None:
    """After a signal of the test, replace the object from the reserve again and again by one of the same size."""
    store = LocalStore(root)
    parent.tell("ready")
    parent.wait()
    for _ in range(times):
        use(store, OLD)


def test_what_a_write_frees_does_not_go_to_another_store_on_the_same_disk(mount: Mount, start: Start) -> None:
    point = mount("size=6m")
    other = str(point / "other")
    LocalStore(other).put_if_absent(PATH, OLD, reserve=Reserve.KEEP)
    disk = FullDisk(point, "no byte")
    greedy = [start(produce_until_stopped, other) for _ in range(2)]
    using = start(use_again, disk.root, 200)
    let_go([*greedy, using])
    using.answer()
    for child in greedy:
        child.tell("stop")
        child.answer()

    internal = Path(disk.root) / "ingest" / ".penstock"
    assert [(internal / name).stat().st_size for name in sorted(disk.spares())] == [256 * KIB] * 4


@pytest.mark.slow  # it waits for five seconds
def test_a_lock_that_another_process_holds_on_the_whole_disk_keeps_no_writer_from_writing(disk: FullDisk) -> None:
    descriptor = os.open(disk.point, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        use(LocalStore(disk.root), b"new")
    finally:
        os.close(descriptor)
    assert contents_of(disk.root) == {PATH: b"new"}


def use_as_other_user(parent: Parent, root: str, data: bytes, reserve: Reserve = Reserve.USE) -> str:
    """Replace the object as another user."""
    store = LocalStore(root)
    os.setgroups([])
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    return store.put_if_match(PATH, data, store.head(PATH).version, reserve=reserve)


@pytest.fixture
def shared_mount(shared_dir: Path, mount: Mount) -> Iterator[Path]:
    """A small file system that other users can reach."""
    mounted = mount("size=3m")
    subprocess.run(["mount", "--bind", str(mounted), str(shared_dir)], check=True)
    yield shared_dir
    subprocess.run(["umount", str(shared_dir)], check=True)


def give_all_but_the_spares_to_other_user(root: str) -> None:
    """Let another user own a store, but for the spares of its reserve."""
    for directory, _, names in os.walk(root):
        os.chown(directory, OTHER_USER, OTHER_USER)
        for name in names:
            if not name.startswith("reserve-"):
                os.chown(os.path.join(directory, name), OTHER_USER, OTHER_USER)


def test_a_short_spare_of_another_user_is_replaced(shared_mount: Path, start: Start) -> None:
    root = shared_mount / "store"
    LocalStore(root).put_if_absent(PATH, OLD, reserve=Reserve.KEEP)
    spare = root / "ingest" / ".penstock" / "reserve-1"
    os.truncate(spare, 10)
    give_all_but_the_spares_to_other_user(str(root))

    start(use_as_other_user, str(root), b"new", Reserve.KEEP).answer()
    assert (spare.stat().st_uid, spare.stat().st_size) == (OTHER_USER, 256 * KIB)


def test_a_reserve_that_belongs_to_another_user_is_freed_for_the_write(shared_mount: Path, start: Start) -> None:
    disk = FullDisk(shared_mount, "no byte")
    give_all_but_the_spares_to_other_user(disk.root)
    version = start(use_as_other_user, disk.root, b"new").answer()
    assert LocalStore(disk.root).head(PATH).version == version
    assert contents_of(disk.root) == {PATH: b"new"}


def test_a_file_with_a_second_name_is_not_used_as_a_spare(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_if_absent(PATH, OLD, reserve=Reserve.KEEP)
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious" * 100_000)
    spare = tmp_path / "store" / "ingest" / ".penstock" / "reserve-0"
    spare.unlink()
    os.link(precious, spare)

    use(store, b"new")
    assert spare.stat().st_nlink == 1
    assert precious.read_bytes() == b"precious" * 100_000


def test_an_object_that_grows_gets_larger_spares(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    version = store.put_if_absent(PATH, b"small", reserve=Reserve.KEEP)
    store.put_if_match(PATH, b"x" * 700 * KIB, version, reserve=Reserve.KEEP)
    spares = sorted((tmp_path / "ingest" / ".penstock").glob("reserve-*"))
    assert [spare.stat().st_size // KIB for spare in spares if spare.name != "reserve.lock"] == [1024, 1024, 256, 256]


def test_a_store_of_others_without_the_keyword_writes_as_ever(tmp_path: Path) -> None:
    store = ThinStore(LocalStore(tmp_path))
    version = replace_with_reserve(store, PATH, b"first", None, Reserve.KEEP)
    replace_with_reserve(store, PATH, b"second", version, Reserve.USE)
    assert store.get(PATH).data == b"second"
