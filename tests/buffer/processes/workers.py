"""Worker processes on one buffer: a test receives the messages of all of them, kills some, and starts them again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.buffer.processes.worker_tasks import Message
from tests.support.processes import PATIENCE, Child, Start


@dataclass(frozen=True)
class Killed:
    """A worker was killed. This comes after all messages that it sent before."""


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker process, with a thread that receives its messages."""

    name: str
    child: Child
    listener: threading.Thread


class Workers:
    """Starts workers, and receives their messages; those of one worker come in their order."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._heard: queue.SimpleQueue[tuple[Worker, Message | Killed | BaseException]] = queue.SimpleQueue()

    def start(self, name: str, work: Callable[..., object], *args: object) -> Worker:
        """Start a worker, which runs until it is killed."""
        child = self._start(work, *args)
        listener = threading.Thread(target=lambda: self._listen(worker))
        worker = Worker(name, child, listener)
        listener.start()
        return worker

    def hear(self) -> tuple[Worker, Message | Killed]:
        """Wait for the next message of any worker."""
        worker, message = self._heard.get(timeout=PATIENCE)
        if isinstance(message, BaseException):
            raise message
        return worker, message

    def kill(self, worker: Worker) -> None:
        """Kill a worker by SIGKILL. Messages that it sent before are still received, and `Killed` after them."""
        worker.child.kill()
        worker.listener.join(PATIENCE)

    def _listen(self, worker: Worker) -> None:
        try:
            while True:
                self._heard.put((worker, worker.child.hear()))
        except (EOFError, OSError):  # killed, perhaps in the middle of a message
            self._heard.put((worker, Killed()))
        except BaseException as error:  # the worker failed: the test raises its error
            self._heard.put((worker, error))
