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

PATIENCE = 60.0  # seconds until a silent process counts as stuck; nothing here takes a tenth of it

# A server that forks: it has no threads of its own, and a child is there in milliseconds, with everything imported.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "penstock.buffer", "penstock.storage.local", "tests.storage.local.writers"])


@dataclass(frozen=True)
class _Said:
    what: Any


@dataclass(frozen=True)
class _Done:
    answer: Any


@dataclass(frozen=True)
class _Failed:
    traceback: str


class Parent:
    """What a child has of the test that started it."""

    def __init__(self, pipe: Connection[Any, Any]) -> None:
        self._pipe = pipe

    def tell(self, what: object = None) -> None:
        """Say something to the test."""
        self._pipe.send(_Said(what))

    def wait(self) -> Any:
        """Block until the test says something."""
        return self._pipe.recv()

    def wants(self) -> bool:
        """Whether the test has said something that was not heard yet."""
        return self._pipe.poll()


class Child:
    """A process that runs `work(parent, *args)`."""

    def __init__(self, work: Callable[..., object], *args: object) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(theirs, work, args, manifests.current()), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, what: object = None) -> None:
        """Say something to the process, which it hears when it waits."""
        self._pipe.send(what)

    def hear(self) -> Any:
        """Wait for what the process tells."""
        message = self._receive()
        assert isinstance(message, _Said), message
        return message.what

    def answer(self) -> Any:
        """Wait for the process to end, and return what its work returned."""
        message = self._receive()
        assert isinstance(message, _Done), message
        self._process.join(PATIENCE)
        return message.answer

    def has_spoken(self) -> bool:
        """Whether there is something to hear, or an answer."""
        return self._pipe.poll()

    def kill(self) -> None:
        """Kill the process by SIGKILL, and return when it is gone."""
        self._process.kill()
        self._process.join(PATIENCE)
        assert self._process.exitcode == -signal.SIGKILL, self._process.exitcode

    def clear_away(self) -> None:
        """Leave nothing of the process behind, whatever state it is in."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join(PATIENCE)
        self._process.close()
        self._pipe.close()

    def _receive(self) -> object:
        assert self._pipe.poll(PATIENCE), "the process says nothing: it is stuck"
        message = self._pipe.recv()
        assert not isinstance(message, _Failed), f"the process failed:\n{message.traceback}"
        return message


def let_go(children: Iterable[Child]) -> None:
    """Wait until all of them say that they are ready, and then send them off together."""
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
        said = "nothing was raised"
        try:
            work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(theirs, said.encode())
            os._exit(0)
    os.close(theirs)
    answered, _, _ = select.select([ours], [], [], PATIENCE / 3)
    said = os.read(ours, 65536).decode() if answered else "it hangs"
    os.close(ours)
    if not answered:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said
