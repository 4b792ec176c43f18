"""`LocalStore`: objects as plain files of a directory. The order of writes is in `docs/design/local-disk.md`."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from penstock import metrics
from penstock.core import get_logger, printable, uptime_ns
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StorageError
from penstock.storage.local import placing
from penstock.storage.local.clock import StoreClock
from penstock.storage.local.folder import Folder, Held, stripe_of
from penstock.storage.local.internal_directory import INTERNAL_NAME
from penstock.storage.local.mounts import refuse_network
from penstock.storage.local.nearly_full import take_turn
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS, as_permissions
from penstock.storage.local.placing import version_of
from penstock.storage.local.reserve import is_full
from penstock.storage.measuring import measured, measured_listing
from penstock.storage.object_store import (
    Data,
    DeleteResult,
    Object,
    ObjectMeta,
    PathRange,
    Reserve,
    as_data,
    as_version,
    check_size,
    is_in_range,
)
from penstock.storage.paths import check_path, check_paths, check_prefix, is_path

_log = get_logger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe planted here must not block a reader
_MAX_PATH_BYTES = os.pathconf("/", "PC_PATH_MAX") - 1  # of a path from the root; the system counts a NUL at its end
_LOCK_BYTES = len(f"/{INTERNAL_NAME}/00-{'0' * 16}.tmp")  # of the longest name that a directory has for its locks


_EVERYTHING: Sequence[PathRange] = [("", "")]


class LocalStore:
    """Objects as files below a directory, with durable atomic writes and compare-and-set for many processes.

    `sync=False` leaves out every sync: fast, and safe against killed processes, but not against a power loss. `mode` is
    the permission bits of the files, by default 0o640, less what the umask takes away; directories can be entered by
    all who may read the files. `clock` and `uptime` are the host's clocks; `step` is called with the name of each step
    of a write, for tests that kill a writer there. Raises `InvalidInput` for a directory on a network file system.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        sync: bool = True,
        mode: int | str = DEFAULT_PERMISSIONS.file_mode,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], int] = uptime_ns,
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root = os.path.abspath(os.fspath(root))
        if os.path.exists(self._root) and not os.path.isdir(self._root):
            raise InvalidInput(f"{printable(self._root)} is a file, and a store needs a directory")
        refuse_network(self._root)
        self.url = "file://" + quote(self._root, errors="surrogateescape")
        self._sync = sync
        self._permissions = as_permissions(mode)
        self._step = step
        self._clock = StoreClock(
            os.path.join(self._root, INTERNAL_NAME, "clock"),
            clock=clock,
            uptime=uptime,
            mode=self._permissions.file_mode,
        )
        self._top = self._folder(self._root)
        self._prepared: set[str] = set()

    def __repr__(self) -> str:
        sync = "" if self._sync else ", sync=False"
        mode = "" if self._permissions == DEFAULT_PERMISSIONS else f", mode={self._permissions.file_mode:#o}"
        return f"LocalStore({self.url}{sync}{mode})"

    def __reduce__(self) -> tuple[Callable[[str, bool, int], LocalStore], tuple[str, bool, int]]:
        return _unpickle, (self._root, self._sync, self._permissions.file_mode)

    def check_path(self, path: str) -> None:
        """Raise `InvalidInput` unless an object can have this path, as the directory is now. Nothing is written."""
        target = self._file(path)
        longest = max(len(os.fsencode(target)), len(os.fsencode(os.path.dirname(target))) + _LOCK_BYTES)
        if longest > _MAX_PATH_BYTES:
            raise InvalidInput(
                f"path {path!r} is refused: below {self._root} it takes {longest} bytes, and a path on this system has "
                f"at most {_MAX_PATH_BYTES}"
            )
        above = self._root
        for segment in path.split("/")[:-1]:
            above = os.path.join(above, segment)
            if os.path.lexists(above) and not os.path.isdir(above):
                raise InvalidInput(f"path {path!r} is refused: {above} is an object, and cannot hold objects below it")
        if os.path.isdir(target):
            raise InvalidInput(f"path {path!r} is refused: {target} holds objects, and cannot be one")

    @measured
    def get(self, path: str, *, max_bytes: int | None = None) -> Object:
        """Read a whole object. Raises `NotFound` if there is none, `CorruptData` if it is above `max_bytes`."""
        with self._reading(path) as descriptor:
            # Data and version come from one open file, which is never written to again.
            found = os.fstat(descriptor)
            check_size(path, self.url, found.st_size, max_bytes)
            with open(descriptor, "rb", buffering=0, closefd=False) as source:
                data = source.readall()
        return Object(data, version_of(found), _last_modified(found))

    @measured
    def head(self, path: str) -> ObjectMeta:
        """Describe an object. Raises `NotFound` if there is none."""
        with self._reading(path) as descriptor:
            return _meta(path, os.fstat(descriptor))

    @measured
    def put(self, path: str, data: Data) -> str:
        """Replace an object atomically and durably, and return its new version."""
        return self._write(path, data, lambda _: None)

    @measured
    def put_if_absent(self, path: str, data: Data, *, reserve: Reserve | None = None) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""

        def check(current: os.stat_result | None) -> None:
            if current is not None:
                raise AlreadyExists(f"there is an object {path!r} in {self.url} already")

        return self._write(path, data, check, reserve)

    @measured
    def put_if_match(self, path: str, data: Data, version: str, *, reserve: Reserve | None = None) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        lost = f"the object {path!r} in {self.url} is not at version {as_version(version)!r} any more"

        def check(current: os.stat_result | None) -> None:
            if current is None or version_of(current) != version:
                raise Conflict(lost)

        try:
            check(_find(self._file(path)))  # before anything is made for it
        except OSError as error:
            raise self._failed("write", path, error) from error
        return self._write(path, data, check, reserve)

    @measured_listing
    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, by whole path segments, in no promised order."""
        return self._list(check_prefix(prefix), _EVERYTHING)

    @measured_listing
    def list_ranges(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        """List the objects below the prefix whose paths are in one of the ranges. Of the others it reads the name."""
        return self._list(check_prefix(prefix), ranges)

    def _list(self, prefix: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        if not prefix:
            return self._walk("", self._root, ranges)
        directory = self._file(prefix)
        self._refuse_link(prefix, directory)
        return self._walk(prefix + "/", directory, ranges)

    @measured
    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        """Delete objects durably; one result for each path. Deleting what is gone is a success."""
        checked = check_paths(paths)
        together: dict[tuple[str, str], dict[str, str]] = {}
        for path in checked:
            target = self._file(path)
            directory, name = os.path.split(target)
            together.setdefault((directory, stripe_of(name)), {})[path] = target
        results: dict[str, DeleteResult] = {}
        for (directory, stripe), targets in together.items():
            errors = self._delete(directory, stripe, targets)
            results |= {path: DeleteResult(path, error) for path, error in errors.items()}
        return [results[path] for path in checked]

    def _delete(self, directory: str, stripe: str, targets: dict[str, str]) -> dict[str, StorageError | None]:
        errors: dict[str, StorageError | None] = dict.fromkeys(targets)
        try:
            if not _is_directory(directory):
                return errors  # nothing is there, so nothing is left to delete
            folder = self._folder(directory)
            with self._hold_to_delete(folder, stripe) as held:
                try:
                    self._unlink_together(folder, held, targets, errors)
                finally:
                    os.close(held.internal.descriptor)
        except (OSError, StorageError) as error:
            for path in errors:
                errors[path] = errors[path] or self._failed("delete", path, error)
        return errors

    def _unlink_together(
        self, folder: Folder, held: Held, targets: dict[str, str], errors: dict[str, StorageError | None]
    ) -> None:
        with folder.changing(held):
            for path, target in targets.items():
                errors[path] = self._unlink(path, target)
            self._step("unlinked")

    def _hold_to_delete(self, folder: Folder, stripe: str) -> Held:
        try:
            return self._hold(folder, stripe)
        except OSError as error:
            # Objects that other programs put there have no lock file. On a full disk a spare frees the space for one.
            if not is_full(error) or not folder.give_up_spare():
                raise
        return self._hold(folder, stripe)

    def _unlink(self, path: str, target: str) -> StorageError | None:
        try:
            if _find(target) is not None:
                os.unlink(target)
        except OSError as error:
            return self._failed("delete", path, error)
        return None

    def _write(
        self,
        path: str,
        data: Data,
        check: Callable[[os.stat_result | None], None],
        reserve: Reserve | None = None,
    ) -> str:
        content = as_data(data)
        target = self._file(path)
        folder = self._folder(os.path.dirname(target))
        turn = take_turn(folder.path, len(content))
        try:
            try:
                written = self._replace(folder, target, content, check, reserve)
            except OSError as error:
                # No spare could be used, or a lock file is to be created: what one spare occupies is enough for that.
                if reserve is not Reserve.USE or not is_full(error) or not folder.give_up_spare():
                    raise
                written = self._replace(folder, target, content, check, reserve)
        except OSError as error:
            raise self._failed("write", path, error) from error
        finally:
            if turn is not None:
                os.close(turn)
        self._step("unmarked")
        metrics.storage_bytes_written.labels(self.url).inc(len(content))
        return written

    def _replace(
        self,
        folder: Folder,
        target: str,
        content: bytes | memoryview,
        check: Callable[[os.stat_result | None], None],
        reserve: Reserve | None,
    ) -> str:
        with self._hold(folder, stripe_of(os.path.basename(target))) as held:
            try:
                current = _find(target)
                check(current)
                placing.keep_reserve(folder, held, len(content), reserve)
                stamp = held.above_last(self._clock.next_stamp())
                if current is not None:
                    # Above an outsider's date, too; but that one is not written down, for it may be far in the future.
                    stamp = max(stamp, current.st_mtime_ns // 1_000 + 1)
                return placing.place(folder, held, target, content, stamp, reserve)
            finally:
                os.close(held.internal.descriptor)

    def _hold(self, folder: Folder, stripe: str) -> Held:
        for _ in range(2):
            self._prepare(folder)
            with suppress(FileNotFoundError):  # the internal directory was removed since
                return folder.hold(stripe)
        self._prepare(folder)
        return folder.hold(stripe)

    def _folder(self, directory: str) -> Folder:
        return Folder(directory, sync=self._sync, step=self._step, permissions=self._permissions)

    def _prepare(self, folder: Folder) -> None:
        for one in (self._top, folder):
            if one.path not in self._prepared or not one.is_prepared():
                refuse_network(one.path)  # a directory below the root may be a mount point
                one.prepare()
                self._prepared.add(one.path)

    @contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        target = self._file(path)
        directory, name = os.path.split(target)
        try:
            descriptor = _open_object(target)
            try:
                # After opening, never before: what was seen must be durable, also the absence of an object.
                self._folder(directory).settle(stripe_of(name))
                if descriptor is None:
                    raise NotFound(f"there is no object {path!r} in {self.url}", location=path)
                yield descriptor
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        except OSError as error:
            raise self._failed("read", path, error) from error

    def _walk(self, prefix: str, directory: str, ranges: Sequence[PathRange]) -> Iterator[ObjectMeta]:
        for entry in self._entries(prefix, directory):
            path = prefix + entry.name
            if entry.name == INTERNAL_NAME or not _may_hold(path, ranges):
                continue
            if not is_path(path):
                _log.info("%r in %s is left out of a listing: no object can have that name", path, self.url)
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path + "/", entry.path, ranges)
                continue
            if not is_in_range(path, ranges):
                continue
            try:
                found = _find(entry.path)
            except OSError as error:
                raise self._failed("list", path, error) from error
            if found is not None:  # neither deleted since, nor a link or a pipe
                yield _meta(path, found)

    def _entries(self, prefix: str, directory: str) -> Iterator[os.DirEntry[str]]:
        """The entries of a directory, one by one: there may be a million, and few that are wanted."""
        try:
            with os.scandir(directory) as entries:
                self._folder(directory).sweep()
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._failed("list", prefix, error) from error

    def _file(self, path: str) -> str:
        segments = check_path(path).split("/")
        if INTERNAL_NAME in segments:
            raise InvalidInput(f"path {path!r} is refused: {INTERNAL_NAME!r} is where a local store keeps its locks")
        if any(len(segment.encode()) > 255 for segment in segments):
            raise InvalidInput(f"path {path!r} is refused: a segment is longer than the 255 bytes a file name can have")
        directory = self._root
        for segment in segments[:-1]:
            directory = os.path.join(directory, segment)
            self._refuse_link(path, directory)
        return os.path.join(directory, segments[-1])

    def _refuse_link(self, path: str, directory: str) -> None:
        if os.path.islink(directory) and not self._is_inside(directory):
            raise InvalidInput(f"path {path!r} is refused: {directory!r} is a link that leaves the store")

    def _is_inside(self, link: str) -> bool:
        root = os.path.realpath(self._root)
        return os.path.commonpath([root, os.path.realpath(link)]) == root

    def _failed(self, what: str, path: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return StorageError(f"could not {what} {path!r} in {self.url}: {_explain(error, self._root)}")


def _unpickle(root: str, sync: bool, mode: int = DEFAULT_PERMISSIONS.file_mode) -> LocalStore:
    return LocalStore(root, sync=sync, mode=mode)


def _explain(error: Exception, root: str) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code in {errno.EISDIR, errno.ENOTDIR, errno.EEXIST}:
        return "on a local disk one name cannot be an object and also hold objects below it"
    if is_full(error):
        return f"the disk is full{_free_space(root)}; nothing was changed: free some space, and try again"
    return printable(str(error))


def _free_space(root: str) -> str:
    try:
        found = os.statvfs(root)
    except OSError:
        return ""
    kibibytes = found.f_bavail * found.f_frsize >> 10
    return f" ({kibibytes} KiB and {found.f_favail} inodes are free, beside the reserve for acks)"


def _open_object(target: str) -> int | None:
    try:
        descriptor = os.open(target, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, or a socket: not an object of ours
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _is_directory(path: str) -> bool:
    """As `os.path.isdir`, but a directory that may not be looked at is an error and not an absence."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _find(target: str) -> os.stat_result | None:
    try:
        found = os.stat(target, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _may_hold(path: str, ranges: Sequence[PathRange]) -> bool:
    """Whether an entry can be wanted: a file of that path, or what is below a directory of it.

    Everything below one begins with its path and a slash, and so is below the path with the character after a slash.
    """
    for after, before in ranges:  # noqa: SIM110  a listing asks it a million times
        if (not before or path < before) and f"{path}0" > after:
            return True
    return False


def _last_modified(found: os.stat_result) -> datetime:
    return _EPOCH + timedelta(microseconds=found.st_mtime_ns // 1_000)


def _meta(path: str, found: os.stat_result) -> ObjectMeta:
    return ObjectMeta(path, found.st_size, _last_modified(found), version_of(found))
