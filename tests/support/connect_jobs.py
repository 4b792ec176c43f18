"""Jobs of Spark Connect: each in a process of its own, for a session of the other kind cannot be beside it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from tests.support.spark_session import skip_without_java

# Each a package of Spark's extra `connect`.
_MISSING = [name for name in ("grpc", "grpc_status", "pandas") if importlib.util.find_spec(name) is None]


def run_connect_job(module: str, directory: Path) -> dict[str, Any]:
    """What a module's job finds, which it prints as JSON. Skips the test where Spark Connect is not installed."""
    if _MISSING:
        pytest.skip(f"Spark Connect needs {', '.join(_MISSING)}: `make test-connect` installs what it needs")
    skip_without_java()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-m", module, directory],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result
