"""Limits and usage of memory, from written file systems, and from a real group of this machine."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.regulation.cgroup import SystemMemory
from tests.support.processes import Parent, Start
from tests.support.waiting import until

MIB = 1 << 20
HOST = 1024 * MIB
NO_LIMIT = 9223372036854771712  # of v1
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory"


class Machine:
    """A file system with what the kernel shows of memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {HOST >> 10} kB\nMemFree: 1 kB\nMemAvailable: {HOST >> 12} kB\n")

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def process(self, groups: str, *mounts: str) -> None:
        self.write("proc/self/cgroup", groups + "\n")
        other = "23 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
        self.write("proc/self/mountinfo", "\n".join([other, *mounts]) + "\n")

    def v2(self, folder: str, most: object = "max", high: object = "max", used: int = 0, cache: int = 0) -> None:
        self.write(f"{folder}/memory.max", f"{most}\n")
        self.write(f"{folder}/memory.high", f"{high}\n")
        self.write(f"{folder}/memory.current", f"{used}\n")
        self.write(
            f"{folder}/memory.stat", f"anon 5\nfile 9\ninactive_file {cache - cache // 3}\nactive_file {cache // 3}\n"
        )

    def v1(self, folder: str, most: int = NO_LIMIT, used: int = 0, cache: int = 0) -> None:
        self.write(f"{folder}/memory.limit_in_bytes", f"{most}\n")
        self.write(f"{folder}/memory.usage_in_bytes", f"{used}\n")
        self.write(
            f"{folder}/memory.stat",
            "inactive_file 1\nactive_file 2\n"
            f"total_inactive_file {cache - cache // 3}\ntotal_active_file {cache // 3}\n",
        )

    def memory(self) -> tuple[int, float]:
        memory = SystemMemory(self.root)
        return memory.limit_bytes, memory.share()


THE_HOSTS = (HOST, 0.75)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_groups_it_is_the_hosts(machine: Machine) -> None:
    assert machine.memory() == THE_HOSTS


def test_v2_takes_the_limit_and_leaves_out_the_page_cache(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB, used=80 * MIB, cache=30 * MIB)
    assert machine.memory() == (100 * MIB, 0.5)


@pytest.mark.parametrize(
    ("most", "high", "limit"),
    [("max", 50 * MIB, 50), (100 * MIB, 50 * MIB, 50), (50 * MIB, 100 * MIB, 50), (50 * MIB, "max", 50)],
)
def test_v2_takes_the_smaller_of_max_and_high(machine: Machine, most: object, high: object, limit: int) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", most, high)
    assert machine.memory() == (limit * MIB, 0.0)


def test_v2_without_a_limit_is_the_hosts(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", used=80 * MIB)
    assert machine.memory() == THE_HOSTS


def test_v1_takes_the_limit_and_leaves_out_the_page_cache_of_the_whole_tree(machine: Machine) -> None:
    machine.process("5:cpu,memory:/app\n1:name=systemd:/other", V1_MOUNT.replace("rw,memory", "rw,cpu,memory"))
    machine.v1("/sys/fs/cgroup/memory/app", 100 * MIB, used=80 * MIB, cache=30 * MIB)
    machine.v1("/sys/fs/cgroup/memory")
    assert machine.memory() == (100 * MIB, 0.5)


def test_v1_takes_the_groups_own_page_cache_where_that_of_the_tree_is_not_known(machine: Machine) -> None:
    machine.process("4:memory:/app", V1_MOUNT)
    machine.v1("/sys/fs/cgroup/memory/app", 100 * MIB, used=80 * MIB)
    machine.write("/sys/fs/cgroup/memory/app/memory.stat", f"inactive_file {20 * MIB}\nactive_file {10 * MIB}\n")
    assert machine.memory() == (100 * MIB, 0.5)


def test_a_huge_number_of_v1_is_no_limit(machine: Machine) -> None:
    machine.process("4:memory:/app", V1_MOUNT)
    machine.v1("/sys/fs/cgroup/memory/app", used=80 * MIB)
    machine.v1("/sys/fs/cgroup/memory", 18446744073709551615, used=80 * MIB)
    assert machine.memory() == THE_HOSTS


@pytest.mark.parametrize(("limit", "expected"), [(HOST, THE_HOSTS), (HOST + 1, THE_HOSTS), (HOST - 1, (HOST - 1, 0.0))])
def test_a_limit_above_the_hosts_memory_is_the_hosts(machine: Machine, limit: int, expected: tuple[int, float]) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", limit)
    assert machine.memory() == expected


def test_a_hybrid_has_the_memory_in_v1(machine: Machine) -> None:
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    machine.process("9:name=systemd:/\n4:memory:/app\n3:cpuset:/\n0::/", unified, V1_MOUNT)
    machine.write("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")
    machine.v1("/sys/fs/cgroup/memory/app", 100 * MIB, used=25 * MIB)
    assert machine.memory() == (100 * MIB, 0.25)


def test_a_v1_mount_of_another_controller_is_not_the_memorys(machine: Machine) -> None:
    cpu = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
    machine.process("4:memory:/app\n1:cpu:/", cpu, V1_MOUNT)
    machine.v1("/sys/fs/cgroup/cpu/app", 10 * MIB)
    machine.v1("/sys/fs/cgroup/memory/app", 100 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_an_ancestor_binds(machine: Machine, version: int) -> None:
    if version == 1:
        machine.process("4:memory:/pod/app/inner", V1_MOUNT)
        machine.v1("/sys/fs/cgroup/memory/pod", 100 * MIB, used=60 * MIB)
        machine.v1("/sys/fs/cgroup/memory/pod/app", NO_LIMIT, used=50 * MIB)
        machine.v1("/sys/fs/cgroup/memory/pod/app/inner", 200 * MIB, used=50 * MIB)
    else:
        machine.process("0::/pod/app/inner", V2_MOUNT)
        machine.v2("/sys/fs/cgroup/pod", 100 * MIB, used=60 * MIB)
        machine.v2("/sys/fs/cgroup/pod/app", used=50 * MIB)
        machine.v2("/sys/fs/cgroup/pod/app/inner", 200 * MIB, used=50 * MIB)
    assert machine.memory() == (100 * MIB, 0.6)


def test_a_larger_limit_that_other_processes_have_filled_is_the_tightest(machine: Machine) -> None:
    machine.process("0::/pod/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/pod", 200 * MIB, used=190 * MIB)
    machine.v2("/sys/fs/cgroup/pod/app", 100 * MIB, used=10 * MIB)
    assert machine.memory() == (100 * MIB, 0.95)


def test_an_ancestor_binds_where_the_own_group_has_no_memory_controller(machine: Machine) -> None:
    machine.process("0::/pod/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/pod", 100 * MIB, used=25 * MIB)
    machine.write("/sys/fs/cgroup/pod/app/cgroup.controllers", "pids\n")
    assert machine.memory() == (100 * MIB, 0.25)


def test_nothing_above_the_mount_counts(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs", 10 * MIB)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


def test_a_group_whose_name_begins_like_anothers_is_another(machine: Machine) -> None:
    machine.process("4:memory:/docker/abcd", V1_MOUNT.replace(" / ", " /docker/abc "))
    machine.v1("/sys/fs/cgroup/memory", 100 * MIB)
    machine.v1("/sys/fs/cgroup/memory/d", 10 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


def test_a_container_whose_mount_shows_its_group_as_the_root(machine: Machine) -> None:
    machine.process("4:memory:/docker/abc", V1_MOUNT.replace(" / ", " /docker/abc "))
    machine.v1("/sys/fs/cgroup/memory", 100 * MIB, used=25 * MIB)
    assert machine.memory() == (100 * MIB, 0.25)


def test_a_group_within_what_a_containers_mount_shows(machine: Machine) -> None:
    machine.process("0::/docker/abc/inner", V2_MOUNT.replace(" / ", " /docker/abc "))
    machine.v2("/sys/fs/cgroup", 100 * MIB, used=25 * MIB)
    machine.v2("/sys/fs/cgroup/inner", 50 * MIB, used=20 * MIB)
    assert machine.memory() == (50 * MIB, 0.4)


def test_a_container_with_a_path_that_is_not_there_takes_the_mount_itself(machine: Machine) -> None:
    machine.process("0::/kubepods/pod1/abc", V2_MOUNT)
    machine.v2("/sys/fs/cgroup", 100 * MIB, used=25 * MIB)
    assert machine.memory() == (100 * MIB, 0.25)


@pytest.mark.parametrize("shown", ["/", "/.."])
@pytest.mark.parametrize("path", ["/", "/../outside", "/.."])
def test_a_namespace_shows_its_group_as_the_root(machine: Machine, path: str, shown: str) -> None:
    machine.process(f"0::{path}", V2_MOUNT.replace(" / ", f" {shown} "))
    machine.v2("/sys/fs/cgroup", 100 * MIB, used=25 * MIB)
    machine.v2("/sys/fs/outside", 10 * MIB)
    assert machine.memory() == (100 * MIB, 0.25)


def test_of_several_mounts_the_one_that_shows_the_group_counts(machine: Machine) -> None:
    elsewhere = V2_MOUNT.replace("/sys/fs/cgroup", "/elsewhere")
    machine.process("0::/app", V2_MOUNT.replace("/sys/fs/cgroup", "/gone"), elsewhere, V2_MOUNT)
    machine.v2("/elsewhere", 50 * MIB)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


def test_names_with_blanks_and_colons_are_read(machine: Machine) -> None:
    machine.process("0::/my: app", V2_MOUNT.replace("/sys/fs/cgroup", "/my\\040groups"))
    machine.v2("/my groups/my: app", 100 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


def test_a_group_that_was_deleted_leaves_its_ancestors(machine: Machine) -> None:
    machine.process("0::/app (deleted)", V2_MOUNT)
    machine.v2("/sys/fs/cgroup", 100 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


NO_NUMBERS = ["", "\n", "lots", "-1", "1.5", "0", "9" * 5000, b"\xff\xfe\x00", "٣", "1 2"]


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_that_is_no_number_is_none(machine: Machine, version: int, text: str | bytes) -> None:
    machine.process("4:memory:/app", V1_MOUNT) if version == 1 else machine.process("0::/app", V2_MOUNT)
    name = "memory/app/memory.limit_in_bytes" if version == 1 else "app/memory.max"
    machine.write(f"/sys/fs/cgroup/{name}", text)
    assert machine.memory() == THE_HOSTS


@pytest.mark.parametrize("text", [text for text in NO_NUMBERS if text != "0"])
def test_usage_that_is_no_number_is_skipped(machine: Machine, text: str | bytes) -> None:
    machine.process("0::/pod/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/pod", 200 * MIB, used=50 * MIB)
    machine.v2("/sys/fs/cgroup/pod/app", 100 * MIB, used=90 * MIB)
    memory = SystemMemory(machine.root)
    assert memory.share() == 0.9
    machine.write("/sys/fs/cgroup/pod/app/memory.current", text)
    assert memory.share() == 0.25


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_page_cache_that_is_no_number_counts_as_used(machine: Machine, text: str | bytes) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB, used=90 * MIB)
    machine.write("/sys/fs/cgroup/app/memory.stat", text)
    assert machine.memory() == (100 * MIB, 0.9)


def test_more_page_cache_than_usage_is_nothing_used(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB, used=10 * MIB, cache=30 * MIB)
    assert machine.memory() == (100 * MIB, 0.0)


def test_a_group_that_vanishes_is_skipped(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    machine.v2("/sys/fs/cgroup/app", 100 * MIB, used=90 * MIB)
    memory = SystemMemory(machine.root)
    shutil.rmtree(machine.root / "sys")
    assert (memory.limit_bytes, memory.share()) == (100 * MIB, 0.0)


def test_folders_in_the_place_of_files_are_no_files(machine: Machine) -> None:
    machine.process("0::/app", V2_MOUNT)
    (machine.root / "sys/fs/cgroup/app/memory.max").mkdir(parents=True)
    assert machine.memory() == THE_HOSTS


@pytest.mark.parametrize("meminfo", ["", "MemTotal: lots\n", "MemTotal: 0 kB\n"])
def test_without_a_total_in_proc_the_system_is_asked(machine: Machine, meminfo: str) -> None:
    machine.write("proc/meminfo", meminfo)
    limit, share = machine.memory()
    assert limit == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < share < 1


def test_a_host_that_no_longer_shows_what_is_available_reads_0(machine: Machine) -> None:
    memory = SystemMemory(machine.root)
    machine.write("proc/meminfo", "MemTotal: 1000 kB\n")
    assert memory.share() == 0.0


LINES = st.lists(
    st.sampled_from([V1_MOUNT, V2_MOUNT, "0::/app", "4:memory:/app", "0::", "::", " - ", " - cgroup2", "4:memory"])
    | st.text(max_size=40)
    | st.lists(st.sampled_from(["0", "/", "/..", "/app", "\\000", "\\777", "-", "cgroup2", "rw,memory", ""])).map(
        " ".join
    )
).map("\n".join)


@settings(deadline=None, max_examples=50)  # it writes files
@given(LINES, LINES)
def test_nothing_in_proc_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, groups: str, mounts: str) -> None:
    machine = Machine(tmp_path_factory.getbasetemp() / "any-proc")
    machine.write("proc/self/cgroup", groups.encode(errors="surrogatepass"))
    machine.write("proc/self/mountinfo", mounts.encode(errors="surrogatepass"))
    machine.v2("/sys/fs/cgroup/app", 100 * MIB)
    limit, share = machine.memory()
    assert limit in {HOST, 100 * MIB}
    assert 0 <= share <= 1


@pytest.fixture
def groups() -> Iterator[Path]:
    """Two real groups, one in the other, of at most 128 and 256 MiB."""
    memory = Path("/sys/fs/cgroup/memory")
    if os.geteuid() != 0 or not (memory / "memory.limit_in_bytes").exists():
        pytest.skip("a real group takes root, and cgroup v1 with its memory controller")
    outer = memory / f"penstock-test-{uuid.uuid4().hex}"
    try:
        outer.mkdir()
    except OSError as error:
        pytest.skip(f"this system does not let root make a group: {error}")
    inner = outer / "inner"
    try:
        inner.mkdir()
        (outer / "memory.limit_in_bytes").write_text(str(128 * MIB))
        (inner / "memory.limit_in_bytes").write_text(str(256 * MIB))
        yield inner
    finally:
        inner.rmdir()
        outer.rmdir()


def _live_in(parent: Parent, group: str, file: str) -> list[tuple[int, float]]:
    home = "/sys/fs/cgroup/memory/cgroup.procs"
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    try:
        memory = SystemMemory()
        before = memory.share()
        readings = [(memory.limit_bytes, before)]
        Path(file).write_bytes(bytes(MIB) * 32)
        Path(file).read_bytes()
        # The kernel counts the page cache every two seconds.
        settled = until(lambda: share if (share := memory.share()) < before + 0.15 else None, "a share without it")
        readings.append((memory.limit_bytes, settled))
        held = bytearray(os.urandom(MIB)) * 64
        readings.append((memory.limit_bytes, memory.share()))
        del held
    finally:
        Path(home).write_text(str(os.getpid()))  # only a group without processes can be removed
    return readings


def test_a_process_in_a_real_group_reads_its_limit_and_what_it_uses(groups: Path, start: Start, tmp_path: Path) -> None:
    answer = start(_live_in, str(groups), str(tmp_path / "file")).answer()
    assert [limit for limit, _ in answer] == [128 * MIB] * 3
    before, with_page_cache, with_64_mib = (share for _, share in answer)
    assert before < 0.1
    assert with_page_cache < before + 0.15
    assert 0.45 < with_64_mib < 0.8
