"""`LocalStore`: objects as plain files of a directory. The order of writes is in `docs/design/local-disk.md`."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from penstock import metrics
from penstock.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutcomeUnknown, StorageError
from penstock.storage.local.clock import StoreClock, uptime_ns
from penstock.storage.local.folder import ROOM, Folder, Held, stripe_of, sync_directory
from penstock.storage.local.mounts import refuse_network
from penstock.storage.measuring import measured, measured_listing
from penstock.storage.object_store import Data, DeleteResult, Object, ObjectMeta, as_data, as_version
from penstock.storage.paths import check_path, check_paths, check_prefix, is_path

log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe planted here must not block a reader
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _no_step(_: str) -> None:
    """Do nothing: only tests look at the steps of a write."""


class LocalStore:
    """Objects as files below a directory, with durable atomic writes and compare-and-set for many processes.

    `sync=False` leaves out every sync: fast, and safe against killed processes, but not against a power loss. `clock`
    and `uptime` are the host's clocks; `step` is called with the name of each step of a write, for tests that kill
    a writer there. Raises `InvalidInput` for a directory on a network file system.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        sync: bool = True,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], int] = uptime_ns,
        step: Callable[[str], None] = _no_step,
    ) -> None:
        self._root = os.path.abspath(os.fspath(root))
        if os.path.exists(self._root) and not os.path.isdir(self._root):
            raise InvalidInput(f"{self._root} is a file, and a store needs a directory")
        refuse_network(self._root)
        self._url = "file://" + quote(self._root, errors="surrogateescape")
        self._sync = sync
        self._step = step
        self._clock = StoreClock(os.path.join(self._root, ROOM, "clock"), clock=clock, uptime=uptime)
        self._top = self._folder(self._root)
        self._prepared: set[str] = set()

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._url

    def __repr__(self) -> str:
        return f"LocalStore({self.url}{'' if self._sync else ', sync=False'})"

    def __reduce__(self) -> tuple[Callable[[str, bool], LocalStore], tuple[str, bool]]:
        return _unpickle, (self._root, self._sync)

    @measured
    def get(self, path: str) -> Object:
        """Read a whole object. Raises `NotFound` if there is none."""
        with self._reading(path) as descriptor:
            # Data and version come from one open file, which is never written to again.
            found = os.fstat(descriptor)
            with open(descriptor, "rb", buffering=0, closefd=False) as source:
                data = source.readall()
        return Object(data, _version(found), _last_modified(found))

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
    def put_if_absent(self, path: str, data: Data) -> str:
        """Create an object, and return its version. Raises `AlreadyExists` if there is one."""

        def check(current: os.stat_result | None) -> None:
            if current is not None:
                raise AlreadyExists(f"there is an object {path!r} in {self.url} already")

        return self._write(path, data, check)

    @measured
    def put_if_match(self, path: str, data: Data, version: str) -> str:
        """Replace the object that is at `version`. Raises `Conflict` if it is not any more, or is gone."""
        lost = f"the object {path!r} in {self.url} is not at version {as_version(version)!r} any more"

        def check(current: os.stat_result | None) -> None:
            if current is None or _version(current) != version:
                raise Conflict(lost)

        try:
            check(_find(self._file(path)))  # before anything is made for it
        except OSError as error:
            raise self._failed("write", path, error) from error
        return self._write(path, data, check)

    @measured_listing
    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """List every object below the prefix, by whole path segments, in no promised order."""
        prefix = check_prefix(prefix)
        if not prefix:
            return self._walk("", self._root)
        directory = self._file(prefix)
        self._refuse_link(prefix, directory)
        return self._walk(prefix + "/", directory)

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
            with self._hold(folder, stripe) as held, self._changing(folder, held):
                for path, target in targets.items():
                    errors[path] = self._unlink(path, target)
                self._step("unlinked")
        except (OSError, StorageError) as error:
            for path in errors:
                errors[path] = errors[path] or self._failed("delete", path, error)
        return errors

    def _unlink(self, path: str, target: str) -> StorageError | None:
        try:
            if _find(target) is not None:
                os.unlink(target)
        except OSError as error:
            return self._failed("delete", path, error)
        return None

    def _write(self, path: str, data: Data, check: Callable[[os.stat_result | None], None]) -> str:
        content = as_data(data)
        target = self._file(path)
        directory, name = os.path.split(target)
        folder = self._folder(directory)
        try:
            with self._hold(folder, stripe_of(name)) as held:
                current = _find(target)
                check(current)
                stamp = held.above_last(self._clock.next_stamp())
                if current is not None:
                    # Above an outsider's date, too; but that one is not written down, for it may be far in the future.
                    stamp = max(stamp, current.st_mtime_ns // 1_000 + 1)
                try:
                    written = self._write_temporary(held.temporary, content, stamp)
                    with self._changing(folder, held):
                        os.rename(held.temporary, target)
                        self._step("moved")
                except BaseException:
                    with suppress(FileNotFoundError):
                        os.unlink(held.temporary)
                    raise
        except OSError as error:
            raise self._failed("write", path, error) from error
        self._step("unmarked")
        metrics.storage_bytes_written.labels(self.url).inc(len(content))
        return written

    def _write_temporary(self, temporary: str, content: bytes | memoryview, stamp: int) -> str:
        descriptor = os.open(temporary, _CREATE, 0o666)
        try:
            self._step("temporary file made")
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._step("written")
            os.utime(descriptor, ns=(stamp * 1_000, stamp * 1_000))
            self._step("stamped")
            if self._sync:
                os.fsync(descriptor)
            self._step("synced")
            written = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if written.st_mtime_ns != stamp * 1_000:
            raise StorageError(
                f"the file system under {self._root} does not keep modification times to the microsecond, and "
                "versions need that: use another one (ext4, xfs, btrfs, tmpfs, APFS do)"
            )
        return _version(written)

    @contextmanager
    def _changing(self, folder: Folder, held: Held) -> Iterator[None]:
        """Around a change to a directory's entries: mark it, make it durable, take the mark off."""
        if not self._sync:
            yield
            return
        marked_before = held.is_marked()
        held.mark()
        self._step("marked")
        try:
            yield
        except OSError:
            if not marked_before:
                held.unmark()
            raise
        try:
            sync_directory(folder.path)
        except OSError as error:
            raise OutcomeUnknown(
                f"a change in {folder.path} happened, and may not be durable: the directory could not be synced "
                f"({error}). The next read of it syncs again before it answers"
            ) from error
        self._step("directory synced")
        with suppress(OSError):  # a mark that stays makes readers sync once more than needed, nothing else
            held.unmark()

    def _hold(self, folder: Folder, stripe: str) -> Held:
        for _ in range(2):
            self._prepare(folder)
            with suppress(FileNotFoundError):  # someone has removed the directory's room since
                return folder.hold(stripe)
        self._prepare(folder)
        return folder.hold(stripe)

    def _folder(self, directory: str) -> Folder:
        return Folder(directory, sync=self._sync, step=self._step)

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
                    raise NotFound(f"there is no object {path!r} in {self.url}")
                yield descriptor
            finally:
                if descriptor is not None:
                    os.close(descriptor)
        except OSError as error:
            raise self._failed("read", path, error) from error

    def _walk(self, prefix: str, directory: str) -> Iterator[ObjectMeta]:
        try:
            with os.scandir(directory) as entries:
                below = [entry for entry in entries if entry.name != ROOM]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._failed("list", prefix, error) from error
        self._folder(directory).sweep()
        for entry in below:
            path = prefix + entry.name
            if not is_path(path):
                log.info("%r in %s is left out of a listing: no object can have that name", path, self.url)
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(path + "/", entry.path)
                continue
            try:
                found = _find(entry.path)
            except OSError as error:
                raise self._failed("list", path, error) from error
            if found is not None:  # neither deleted since, nor a link or a pipe
                yield _meta(path, found)

    def _file(self, path: str) -> str:
        segments = check_path(path).split("/")
        if ROOM in segments:
            raise InvalidInput(f"path {path!r} is refused: {ROOM!r} is where a local store keeps its locks")
        if any(len(segment.encode()) > 255 for segment in segments):
            raise InvalidInput(f"path {path!r} is refused: a segment is longer than the 255 bytes a file name can have")
        directory = self._root
        for segment in segments[:-1]:
            directory = os.path.join(directory, segment)
            self._refuse_link(path, directory)
        return os.path.join(directory, segments[-1])

    def _refuse_link(self, path: str, directory: str) -> None:
        if os.path.islink(directory) and not self._is_inside(directory):
            raise InvalidInput(f"path {path!r} is refused: {directory} is a link that leaves the store")

    def _is_inside(self, link: str) -> bool:
        root = os.path.realpath(self._root)
        return os.path.commonpath([root, os.path.realpath(link)]) == root

    def _failed(self, what: str, path: str, error: Exception) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return StorageError(f"could not {what} {path!r} in {self.url}: {_explain(error)}")


def _unpickle(root: str, sync: bool) -> LocalStore:
    return LocalStore(root, sync=sync)


def _explain(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code in {errno.EISDIR, errno.ENOTDIR, errno.EEXIST}:
        return "on a local disk one name cannot be an object and also hold objects below it"
    if code == errno.ENOSPC:
        return "the disk is full; nothing was changed"
    return str(error)


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


def _version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"


def _last_modified(found: os.stat_result) -> datetime:
    return _EPOCH + timedelta(microseconds=found.st_mtime_ns // 1_000)


def _meta(path: str, found: os.stat_result) -> ObjectMeta:
    return ObjectMeta(path, found.st_size, _last_modified(found), _version(found))
