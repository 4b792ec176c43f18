"""A JVM that starts sooner: the classes that Spark loads are kept in an archive which later starts map into memory.

Java calls it class data sharing. The first start has no archive: its JVM writes one when it ends, which takes a few
seconds that no caller waits for. A start takes about half as long with it (`docs/design/start-costs.md`).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pyspark

from penstock.spark.installed_java import OLDEST_JAVA, InstalledJava, find_java

_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
_MAGIC = (b"\xa8\xab\x0b\xf0", b"\xf0\x0b\xab\xa8")  # of an archive, in the host's order of bytes; written last
_MAX_AGE_SECONDS = 30 * 86400.0
_SETTLED_SECONDS = 20.0


def sharing_options(given: str = "", cache: Path | None = None) -> str:
    """The options of a driver's JVM: those given, and those that use the archive, or have it written.

    Only the options given where Java is too old or not found, where the cache cannot be written, or where they speak
    of an archive themselves.
    """
    if "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given or "-Xshare" in given:
        return given
    java = find_java()
    folder = _folder() if cache is None else cache
    if java is None or java.version is None or java.version < OLDEST_JAVA or " " in str(folder):
        return given
    archive = folder / f"spark-{_key(java)}.jsa"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _take_written(archive)
        if archive.exists():
            archive.touch()
            return f"{given} {_QUIET} -XX:SharedArchiveFile={archive}".strip()
    except OSError:
        return given
    # A name of its own: two first starts at the same time do not write into one file.
    return f"{given} {_QUIET} -XX:ArchiveClassesAtExit={_part_of(archive)}".strip()


def _key(java: InstalledJava) -> str:
    """A name for this Java with these jars: an archive is of no use to any other."""
    jars = Path(pyspark.__file__).parent / "jars"
    both = f"{java.path}\n{java.text}"
    with suppress(OSError):
        both += f"{jars} {jars.stat().st_mtime_ns}"
    return f"{pyspark.__version__}-{hashlib.sha256(both.encode()).hexdigest()[:12]}"


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    home = Path(cache) if cache else Path.home() / ".cache"
    if not os.access(home if home.is_dir() else home.parent, os.W_OK):
        home = Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"
    return home / "penstock" / "java"


def _part_of(archive: Path) -> Path:
    return archive.with_name(f"{archive.stem}.{os.getpid()}.part")


def _take_written(archive: Path) -> None:
    """Give the archive its name once a JVM has written it, and remove what is of no use any more."""
    now = time.time()
    for part in archive.parent.glob(f"{archive.stem}.*.part"):
        with suppress(FileNotFoundError):
            if now - part.stat().st_mtime < _SETTLED_SECONDS and not _is_whole(part):
                continue  # a JVM is writing it
            if _is_whole(part) and not archive.exists():
                part.rename(archive)
            else:
                part.unlink()
    for old in archive.parent.glob("spark-*.jsa"):
        with suppress(FileNotFoundError):
            if now - old.stat().st_mtime > _MAX_AGE_SECONDS:
                old.unlink()


def _is_whole(archive: Path) -> bool:
    with archive.open("rb") as file:
        return file.read(4) in _MAGIC
