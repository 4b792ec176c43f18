"""`examples/recipes/script.py`: its exit status says whether all lines of the file are durable."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.waiting import until
from tests.support.web_servers import Run


def test_status_0_means_that_every_line_is_in_the_buffer(run: Run, buffer: Path, tmp_path: Path) -> None:
    lines = [b"line %d" % number for number in range(10_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\n")
    script = run("script", str(tmp_path / "lines"), str(buffer))
    assert script.ended() == 0
    assert script.output() == "10000 events are durable\n"
    assert entries(open_store(buffer)) == lines


def test_sigterm_flushes_what_was_produced_and_is_no_success(run: Run, buffer: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lines")
    script = run("script", str(tmp_path / "lines"), str(buffer))
    with open(tmp_path / "lines", "wb", buffering=0) as pipe:
        pipe.write(b"one\ntwo\n")
        until(lambda: list(buffer.rglob("*.batch")) or None, "the first batch")
        pipe.write(b"three\n")
        script.process.send_signal(signal.SIGTERM)
        assert script.ended() == 128 + signal.SIGTERM
    found = entries(open_store(buffer))
    assert found == [b"one", b"two", b"three"][: len(found)]
    assert len(found) >= 2
    assert not script.output()


def test_a_buffer_that_cannot_be_written_is_no_success(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\n")
    (tmp_path / "file").touch()
    script = run("script", str(tmp_path / "lines"), str(tmp_path / "file" / "buffer"))
    assert script.ended() == 1
    assert "durable" not in script.output().splitlines()[-1]
