"""The Java that Spark would start."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

OLDEST_JAVA = 17
"""The oldest version that Spark runs on."""

_ANSWER_SECONDS = 30


@dataclass(frozen=True, slots=True)
class InstalledJava:
    """A Java: where it is, what it prints of itself, and its major version, where that can be read."""

    path: str
    text: str
    version: int | None


def find_java() -> InstalledJava | None:
    """The Java of JAVA_HOME, or else of the PATH; None where there is none. A program asks it for its version once."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    try:
        return None if path is None else _ask(path, os.stat(path).st_mtime_ns)
    except FileNotFoundError:
        return None


@functools.cache
def _ask(path: str, _changed_ns: int) -> InstalledJava:
    try:
        shown = subprocess.run(  # noqa: S603  the user's own
            [path, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return InstalledJava(path, "", None)
    text = f"{shown.stdout}{shown.stderr}"
    found = re.search(r'version "(\d+)', text)
    return InstalledJava(path, text, int(found[1]) if found else None)
