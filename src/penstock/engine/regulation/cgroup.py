"""How much memory this process may use, and how much is used: by its cgroup, else by the host.

A group's limit binds all groups below it, so every level counts, from the process's own group up to the root of the
mount. Which level is the fullest changes with the other processes in it, so that is decided at each reading, by used
over limit: in a full group processes are killed, however little this process's own group uses.

Page cache is part of a group's usage and is not counted here: the kernel drops it before it kills a process, and after
some reading of files it fills every group to its limit.

Nothing here raises. What cannot be read is skipped: a group without readable limits has none.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class _Files:
    """The file names of a version of the interface; of `cache`, the first name that `memory.stat` has counts."""

    limits: tuple[str, ...]
    usage: str
    cache: tuple[tuple[str, ...], ...]


_V1 = _Files(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    (("total_inactive_file", "inactive_file"), ("total_active_file", "active_file")),
)
_ROW = re.compile(r"^[ \t]*(\S+)[ \t]+([0-9]{1,20})(?=\s|$)", re.MULTILINE)  # a name, and a number as for `_whole`
_V2 = _Files(("memory.max", "memory.high"), "memory.current", (("inactive_file",), ("active_file",)))


@dataclass(frozen=True)
class MemoryLevel:
    """A limit, and a function that returns how much of it is used, or None if that cannot be read."""

    limit_bytes: int
    used: Callable[[], int | None]


class SystemMemory:
    """The limits on this process's memory: those of its cgroups, or the host's memory if no group has one below it.

    Everything is read below the file system's `root`. The limits are read once, and what is used each time.
    """

    def __init__(self, root: Path | str = "/") -> None:
        host = _host(Path(root))
        # A limit above the host's memory is none: "no limit" of v1 is such a number.
        groups = tuple(level for level in _group_levels(Path(root)) if level.limit_bytes < host.limit_bytes)
        self._levels = groups or (host,)

    @property
    def limit_bytes(self) -> int:
        """The smallest of the limits."""
        return min(level.limit_bytes for level in self._levels)

    def share(self) -> float:
        """How full the fullest level is, 1 being at its limit; 0 if none of them can be read."""
        shares = (used / level.limit_bytes for level in self._levels if (used := level.used()) is not None)
        return max(shares, default=0.0)


def _group_levels(root: Path) -> Iterator[MemoryLevel]:
    # The memory controller is in one hierarchy. Where there are two, the groups of the other have no such files.
    for files, own, mount in ((_V1, *_place(root, "cgroup")), (_V2, *_place(root, "cgroup2"))):
        for folder in _upwards(own, mount):
            limits = [limit for name in files.limits if (limit := _number(folder / name))]
            if limits:
                yield MemoryLevel(min(limits), _usage_of(folder, files))


def _usage_of(folder: Path, files: _Files) -> Callable[[], int | None]:
    def used() -> int | None:
        usage = _number(folder / files.usage)
        if usage is None:
            return None
        stat = _table(folder / "memory.stat")
        cache = sum(next((int(stat[name]) for name in names if name in stat), 0) for names in files.cache)
        return max(0, usage - cache)

    return used


def _place(root: Path, kind: str) -> tuple[Path | None, Path | None]:
    """The folder of this process's group in the hierarchy of this kind, and where that hierarchy is mounted."""
    path = _own_path(root, kind)
    first: Path | None = None
    for inner, point in _mounts(root, kind):
        mount = root / point.lstrip("/")
        # os.path returns False where pathlib raises.
        if path is None or not os.path.isdir(mount):
            continue
        first = first or mount
        # The mount of a container shows a part of the tree, while the path may be that in the whole tree.
        below = PurePosixPath(path)
        if below.is_relative_to(inner):
            below = below.relative_to(inner)
        own = mount / str(below).lstrip("/")
        if ".." not in below.parts and os.path.isdir(own):
            return own, mount
    return first, first


def _own_path(root: Path, kind: str) -> str | None:
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_it = number == "0" and not controllers if kind == "cgroup2" else "memory" in controllers.split(",")
        if is_it and path.startswith("/"):
            return path.removesuffix(" (deleted)")
    return None


def _mounts(root: Path, kind: str) -> Iterator[tuple[str, str]]:
    """The part of the tree that each mount of this kind shows, and its mount point."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        mount, system = before.split(" "), after.split(" ")
        if len(mount) < 5 or len(system) < 3 or system[0] != kind:
            continue
        if kind == "cgroup2" or "memory" in system[2].split(","):
            yield _plain(mount[3]), _plain(mount[4])


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _upwards(folder: Path | None, top: Path | None) -> Iterator[Path]:
    while folder is not None:
        yield folder
        folder = None if folder in (top, folder.parent) else folder.parent


def _host(root: Path) -> MemoryLevel:
    def used() -> int | None:
        now = _table(root / "proc/meminfo")
        if "MemTotal:" not in now or "MemAvailable:" not in now:
            return None
        return max(0, int(now["MemTotal:"]) - int(now["MemAvailable:"])) * 1024

    total = int(_table(root / "proc/meminfo").get("MemTotal:", 0)) * 1024
    if total > 0:
        return MemoryLevel(total, used)
    return MemoryLevel(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _largest_so_far)


def _largest_so_far() -> int:
    """The most that this process has used: without `/proc`, what it uses now cannot be read."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _number(file: Path) -> int | None:
    """The number in a file; None for anything else in it ("max"), and without the file."""
    return _whole(_lines(file)[0].strip())


def _table(file: Path) -> dict[str, str]:
    """A file of lines with a name and a whole number."""
    return dict(_ROW.findall(_text(file)))


def _whole(word: str) -> int | None:
    """A whole number of at most 20 digits, as the kernel's 64 bits have; larger ones cannot be divided as floats."""
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else None


def _lines(file: Path) -> list[str]:
    return _text(file).split("\n")  # not by splitlines: the name of a group may have its other separators in it


def _text(file: Path) -> str:
    try:
        return os.fsdecode(file.read_bytes())
    except (OSError, ValueError):
        return ""
