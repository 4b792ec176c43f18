"""`examples/recipes/lambda_handler.py` in a process that is frozen between two calls, and killed in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import open_store
from tests.support.buffer_contents import entries
from tests.support.processes import PATIENCE
from tests.support.web_servers import RECIPES

RUNTIME = """
import json, sys
from lambda_handler import handler

for line in sys.stdin:
    print(json.dumps(handler(json.loads(line), None)), flush=True)
"""


class Function:
    """A function in a process of its own, which is stopped whenever no call runs."""

    def __init__(self, buffer: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNTIME],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=RECIPES,
            env={**os.environ, "BUFFER": str(buffer)},
        )

    def call(self, *records: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps({"records": records}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(answer)


@pytest.fixture
def function(buffer: Path) -> Iterator[Function]:
    with (function := Function(buffer)).process:
        yield function
        function.process.kill()


def test_what_a_call_has_answered_is_in_the_buffer_while_the_process_is_frozen(
    function: Function, buffer: Path
) -> None:
    for number in range(5):
        assert function.call({"number": number}) == {"sequence": number}
        assert json.loads(entries(open_store(buffer))[-1]) == {"number": number}
    assert function.call({"last": 1}, {"last": 2}) == {"sequence": 5}
    function.process.kill()
    assert function.process.wait(PATIENCE) == -signal.SIGKILL
    assert len(entries(open_store(buffer))) == 7
