"""The archive of classes that makes a JVM start sooner: when it is written, when it is used, and when neither."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.spark.java_start import sharing_options
from tests.support.spark_session import skip_without_java
from tests.support.waiting import until

WHOLE = b"\xf0\x0b\xab\xa8" + b"classes"
HALF = b"\0\0\0\0" + b"classes"
GIVEN = "-Xmx1g"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that says it is 17, and does nothing else."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    path = home / "bin" / "java"
    say(path, 'openjdk version "17.0.9"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    return path


def say(java: Path, text: str) -> None:
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)


def part_in(cache: Path) -> Path:
    """Where the JVM that gets the options is to write its archive."""
    return Path(sharing_options(GIVEN, cache).rpartition("-XX:ArchiveClassesAtExit=")[2])


@pytest.mark.usefixtures("java")
def test_the_first_start_has_an_archive_written_under_a_name_of_its_own(cache: Path) -> None:
    options = sharing_options(GIVEN, cache)
    assert options.startswith(f"{GIVEN} -Xshare:auto ")
    part = part_in(cache)
    assert part.parent == cache
    assert part.name.endswith(f".{os.getpid()}.part")
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("java")
def test_an_archive_that_is_written_is_used(cache: Path) -> None:
    part_in(cache).write_bytes(WHOLE)
    options = sharing_options(GIVEN, cache)
    [archive] = cache.iterdir()
    assert archive.suffix == ".jsa"
    assert archive.read_bytes() == WHOLE
    assert options.endswith(f" -XX:SharedArchiveFile={archive}")
    assert "ArchiveClassesAtExit" not in options


@pytest.mark.usefixtures("java")
def test_of_two_archives_one_is_used_and_the_other_removed(cache: Path) -> None:
    part = part_in(cache)
    part.write_bytes(WHOLE)
    part.with_name(part.name.replace(f".{os.getpid()}.", ".1.")).write_bytes(WHOLE)
    assert "SharedArchiveFile" in sharing_options(GIVEN, cache)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("java")
def test_an_archive_that_a_jvm_is_writing_is_left_alone_and_one_it_has_given_up_is_removed(cache: Path) -> None:
    part = part_in(cache)
    other = part.with_name(part.name.replace(f".{os.getpid()}.", ".1."))
    other.write_bytes(HALF)
    assert "ArchiveClassesAtExit" in sharing_options(GIVEN, cache)
    assert other.exists()
    os.utime(other, (time.time() - 60,) * 2)
    assert "ArchiveClassesAtExit" in sharing_options(GIVEN, cache)
    assert not other.exists()


@pytest.mark.usefixtures("java")
def test_archives_that_were_not_used_for_long_are_removed(cache: Path) -> None:
    cache.mkdir()
    old, young = cache / "spark-3.5.0-old.jsa", cache / "spark-4.0.0-young.jsa"
    for one in (old, young):
        one.write_bytes(WHOLE)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    sharing_options(GIVEN, cache)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.usefixtures("java")
def test_an_archive_in_use_is_as_young_as_its_last_use(cache: Path) -> None:
    part_in(cache).write_bytes(WHOLE)
    sharing_options(GIVEN, cache)
    [archive] = cache.iterdir()
    os.utime(archive, (time.time() - 29 * 86400,) * 2)
    sharing_options(GIVEN, cache)
    assert time.time() - archive.stat().st_mtime < 3600


def test_another_java_has_an_archive_of_its_own(cache: Path, java: Path) -> None:
    part_in(cache).write_bytes(WHOLE)
    assert "SharedArchiveFile" in sharing_options(GIVEN, cache)
    say(java, 'openjdk version "21.0.1"')
    assert "ArchiveClassesAtExit" in sharing_options(GIVEN, cache)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine"])
def test_options_of_the_users_that_speak_of_archives_stay_as_they_are(cache: Path, given: str) -> None:
    assert sharing_options(given, cache) == given
    assert not cache.exists()


def test_without_java_or_with_an_old_one_there_are_the_given_options_only(
    cache: Path, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(java, 'java version "1.8.0_301"')
    assert sharing_options(GIVEN, cache) == GIVEN
    say(java, "no java")
    assert sharing_options(GIVEN, cache) == GIVEN
    monkeypatch.setenv("JAVA_HOME", str(java.parent / "gone"))
    assert sharing_options(GIVEN, cache) == GIVEN
    assert not cache.exists()


@pytest.mark.usefixtures("java")
def test_a_cache_that_cannot_be_written_leaves_the_given_options(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert sharing_options(GIVEN, tmp_path / "file" / "cache") == GIVEN
    assert sharing_options(GIVEN, tmp_path / "with a space") == GIVEN


@pytest.mark.usefixtures("java")
def test_a_home_that_is_not_there_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "gone" / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert f"-XX:ArchiveClassesAtExit={tmp_path}/penstock-" in sharing_options(GIVEN)


_SESSION = """\
import sys
from pathlib import Path
from penstock.spark.java_start import sharing_options
from tests.support.spark_session import local_session
options = sharing_options("-Xlog:class+load:file=" + sys.argv[2], Path(sys.argv[1]))
spark = local_session(spark_driver_extraJavaOptions=options, spark_python_daemon_module="penstock.spark.worker_daemon")
assert spark.sparkContext.parallelize(range(4), 2).map(lambda n: n * n).sum() == 14
spark.stop()
print(options)
"""


@pytest.mark.slow
def test_a_second_session_takes_sparks_classes_from_the_archive_that_the_first_has_written(
    cache: Path, tmp_path: Path
) -> None:
    skip_without_java()

    def start(name: str) -> tuple[str, int]:
        """The options of a session that has run and ended, and how many of Spark's classes it had from an archive."""
        log = tmp_path / name
        command = [sys.executable, "-c", _SESSION, str(cache), str(log)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines()
        return done.stdout, sum("org.apache.spark." in line and "shared objects file" in line for line in lines)

    options, shared = start("first")
    assert "ArchiveClassesAtExit" in options
    assert shared == 0
    # The JVM ends after its driver, and writes the archive then.
    until(lambda: "ArchiveClassesAtExit" not in sharing_options("", cache) or None, "the archive", 120)
    options, shared = start("second")
    assert "SharedArchiveFile" in options
    assert shared > 1000
