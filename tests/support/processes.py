"""Real processes that a test starts, talks to over a pipe, and kills."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from tests.support import manifests

PATIENCE = 60.0  # seconds after which a silent process counts as stuck; nothing here takes a tenth of it

# A server that forks: it has no threads of its own, and a child is there in milliseconds, with everything imported.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "penstock.buffer", "penstock.storage.local", "tests.storage.local.writers"])


@dataclass(frozen=True)
class _Message:
    content: Any


@dataclass(frozen=True)
class _Done:
    answer: Any


@dataclass(frozen=True)
class _Failed:
    traceback: str


class Parent:
    """The test that started this process, as the process sees it."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def tell(self, what: object = None) -> None:
        """Send a message to the test."""
        self._pipe.send(_Message(what))

    def wait(self) -> Any:
        """Wait for a message of the test, and return it."""
        return self._pipe.recv()

    def wants(self) -> bool:
        """Whether a message of the test waits to be received."""
        return self._pipe.poll()


class Child:
    """A process that runs `work(parent, *args)`."""

    def __init__(self, work: Callable[..., object], *args: object) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(theirs, work, args, manifests.current()), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, what: object = None) -> None:
        """Send a message to the process, which it receives when it waits."""
        self._pipe.send(what)

    def hear(self) -> Any:
        """Wait for a message of the process, and return it."""
        message = self._receive()
        assert isinstance(message, _Message), message
        return message.content

    def answer(self) -> Any:
        """Wait for the process to end, and return what its work returned."""
        message = self._receive()
        assert isinstance(message, _Done), message
        self._process.join(PATIENCE)
        return message.answer

    def has_spoken(self) -> bool:
        """Whether a message or the answer of the process waits to be received."""
        return self._pipe.poll()

    def kill(self) -> None:
        """Kill the process by SIGKILL, and return when it is gone."""
        self._process.kill()
        self._process.join(PATIENCE)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode

    def clear_away(self) -> None:
        """End the process in any state, and release what the test holds of it."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join(PATIENCE)
        self._process.close()
        self._pipe.close()

    def _receive(self) -> object:
        assert self._pipe.poll(PATIENCE), "the process sends nothing: it is stuck"
        message = self._pipe.recv()
        assert not isinstance(message, _Failed), f"the process failed:\n{message.traceback}"
        return message


def let_go(children: Iterable[Child]) -> None:
    """Wait until each process has sent a message, and then let all go on together."""
    waiting = list(children)
    for child in waiting:
        child.hear()
    for child in waiting:
        child.tell("go")


Start: TypeAlias = Callable[..., Child]


def _run(pipe: Connection[Any, Any], work: Callable[..., object], args: tuple[object, ...], manifest: str) -> None:
    os.environ[manifests.VARIABLE] = manifest
    try:
        message: _Done | _Failed = _Done(work(Parent(pipe), *args))
    except BaseException:
        message = _Failed(traceback.format_exc())
    pipe.send(message)


def in_forked_child(work: Callable[[], object]) -> str:
    """Fork, do the work in the child, and return what it raised there."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = "nothing was raised"
        try:
            work()
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            os.write(theirs, outcome.encode())
            os._exit(0)
    os.close(theirs)
    answered, _, _ = select.select([ours], [], [], PATIENCE / 3)
    outcome = os.read(ours, 65536).decode() if answered else "it hangs"
    os.close(ours)
    if not answered:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return outcome
