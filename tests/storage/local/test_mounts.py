"""Network file systems are refused where the table of mounts names them."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.storage.local import LocalStore
from penstock.storage.local.mounts import Mount, find_mount, refuse_network

ROOT = "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


def table(*lines: str) -> str:
    return "\n".join([ROOT, *lines]) + "\n"


def test_a_directory_lies_on_the_mount_above_it() -> None:
    mounts = table("30 21 0:5 / /data rw - nfs4 host:/x rw", "31 21 8:2 / /home rw - xfs /dev/sdb rw")

    assert find_mount("/data", mounts) == Mount("/data", "nfs4")
    assert find_mount("/data/events/deep", mounts) == Mount("/data", "nfs4")
    assert find_mount("/home/me", mounts) == Mount("/home", "xfs")
    assert find_mount("/elsewhere", mounts) == Mount("/", "ext4")
    assert find_mount("/", mounts) == Mount("/", "ext4")


def test_a_directory_whose_name_only_begins_like_a_mount_point_is_not_on_it() -> None:
    assert find_mount("/database", table("30 21 0:5 / /data rw - nfs4 host:/x rw")) == Mount("/", "ext4")


def test_the_innermost_of_nested_mounts_counts_in_whatever_order_they_are_listed() -> None:
    outer = "30 21 0:5 / /data rw - nfs4 host:/x rw"
    inner = "31 30 8:2 / /data/fast rw - xfs /dev/sdb rw"
    for mounts in (table(outer, inner), table(inner, outer), f"{inner}\n{outer}\n{ROOT}\n"):
        assert find_mount("/data/fast/events", mounts) == Mount("/data/fast", "xfs")
        assert find_mount("/data/slow/events", mounts) == Mount("/data", "nfs4")


def test_of_two_mounts_on_one_point_the_one_on_top_counts() -> None:
    below = "30 21 8:2 / /data rw - xfs /dev/sdb rw"
    above = "31 30 0:5 / /data rw - nfs4 host:/x rw"

    assert find_mount("/data/events", table(below, above)) == Mount("/data", "nfs4")


def test_a_mount_that_another_one_above_it_hides_does_not_count() -> None:
    mounts = table(
        "30 21 8:2 / /data rw - xfs /dev/sdb rw",
        "31 30 8:3 / /data/fast rw - ext4 /dev/sdc rw",
        "32 30 0:5 / /data rw - nfs4 host:/x rw",  # over all of /data, with a directory `fast` of its own
    )

    assert find_mount("/data/fast/events", mounts) == Mount("/data", "nfs4")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (r"/my\040data", "/my data"),
        (r"/my\011data", "/my\tdata"),
        (r"/my\012data", "/my\ndata"),
        (r"/my\134data", "/my\\data"),
        (r"/my\134040data", "/my\\040data"),
        (r"/a\040-\040b", "/a - b"),
        ("/größe", "/größe"),
        ("/line\u2028break", "/line\u2028break"),
    ],
)
def test_a_mount_point_with_strange_characters_is_found(written: str, name: str) -> None:
    mounts = table(rf"30 21 0:5 / {written} rw,noatime shared:4 master:2 - nfs4 host:/x rw")

    assert find_mount(f"{name}/events", mounts) == Mount(name, "nfs4")


def test_a_directory_is_looked_for_where_its_links_lead(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real = os.path.realpath(tmp_path / "real")

    assert find_mount(str(tmp_path / "link" / "new"), table(f"30 21 0:5 / {real} rw - cifs //h/x rw")) == Mount(
        real, "cifs"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_in_a_root_that_is_no_mount_point_only_the_mounts_above_a_directory_count(order: int) -> None:
    # As a process in a chroot sees it: neither `/` nor what lies above it is in the table.
    lines = [
        "30 29 0:5 / /data rw - nfs4 host:/x rw",
        "31 29 0:6 / /proc rw - proc proc rw",
        "32 30 8:2 / /data/fast rw - xfs /dev/sdb rw",
    ]
    mounts = "\n".join(lines[::order])

    assert find_mount("/elsewhere", mounts) is None
    assert find_mount("/data/slow", mounts) == Mount("/data", "nfs4")
    assert find_mount("/data/fast/events", mounts) == Mount("/data/fast", "xfs")


def test_mounts_are_found_where_the_root_is_listed_after_them() -> None:
    mounts = (
        "22 28 0:21 / /proc rw - proc proc rw\n30 28 0:5 / /data rw - nfs4 host:/x rw\n28 1 8:1 / / rw - ext4 x rw\n"
    )

    assert find_mount("/data/events", mounts) == Mount("/data", "nfs4")
    assert find_mount("/home", mounts) == Mount("/", "ext4")


def test_lines_that_are_not_understood_are_passed_over() -> None:
    assert find_mount("/data", "") is None
    assert find_mount("/data", "junk\n\n30 21 0:5 / /data rw nfs4 host:/x rw\n - \n" + ROOT) == Mount("/", "ext4")


@pytest.fixture
def mounts_are(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Put another text (or none) in the place of the system's table of mounts."""
    real = builtins.open

    def mounts_are(text: str | None) -> None:
        def fake(file: Any, *args: Any, **kwargs: Any) -> Any:
            if file != "/proc/self/mountinfo":
                return real(file, *args, **kwargs)
            if text is None:
                raise FileNotFoundError(file)
            return io.StringIO(text)

        monkeypatch.setattr(builtins, "open", fake)

    return mounts_are


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.sshfs", "fuse.s3fs"]
)
def test_a_store_on_a_network_file_system_is_refused(
    tmp_path: Path, mounts_are: Callable[[str | None], None], kind: str
) -> None:
    mounts_are(table(f"30 21 0:5 / {os.path.realpath(tmp_path)} rw - {kind} host:/x rw"))

    with pytest.raises(InvalidInput, match=kind):
        refuse_network(str(tmp_path / "events"))
    with pytest.raises(InvalidInput, match=kind):
        LocalStore(tmp_path / "events")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs"])
def test_a_store_on_a_local_file_system_is_not_refused(
    tmp_path: Path, mounts_are: Callable[[str | None], None], kind: str
) -> None:
    mounts_are(table(f"30 21 0:5 / {os.path.realpath(tmp_path)} rw - {kind} /dev/sdb rw"))

    LocalStore(tmp_path).put("object", b"")


def test_a_system_without_a_table_of_mounts_refuses_nothing(
    tmp_path: Path, mounts_are: Callable[[str | None], None]
) -> None:
    mounts_are(None)

    LocalStore(tmp_path).put("object", b"")


def test_a_network_file_system_mounted_below_the_root_is_refused_when_it_is_written_to(
    tmp_path: Path, mounts_are: Callable[[str | None], None]
) -> None:
    store = LocalStore(tmp_path)
    store.put("local/object", b"")
    mounts_are(table(f"30 21 0:5 / {os.path.realpath(tmp_path / 'mounted')} rw - nfs4 host:/x rw"))

    with pytest.raises(InvalidInput, match="network file system"):
        store.put("mounted/object", b"")
    store.put("local/object", b"again")
    assert not (tmp_path / "mounted").exists()
