"""Many processes on one buffer, and a test that hears all of them at once, kills some, and starts them again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.buffer.processes.roles import Word
from tests.support.processes import PATIENCE, Child, Start


@dataclass(frozen=True)
class Silent:
    """A process was killed, and everything it told before that was heard."""


@dataclass(frozen=True, eq=False)
class Member:
    """A process of the crowd, with a thread that listens to it."""

    name: str
    child: Child
    listener: threading.Thread


class Crowd:
    """Starts processes, and hears what any of them tells, each one's words in their order."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._heard: queue.SimpleQueue[tuple[Member, Word | Silent | BaseException]] = queue.SimpleQueue()

    def start(self, name: str, work: Callable[..., object], *args: object) -> Member:
        """Start a process, which stays until it is killed."""
        child = self._start(work, *args)
        listener = threading.Thread(target=lambda: self._listen(member))
        member = Member(name, child, listener)
        listener.start()
        return member

    def hear(self) -> tuple[Member, Word | Silent]:
        """Wait for whatever is told next."""
        member, word = self._heard.get(timeout=PATIENCE)
        if isinstance(word, BaseException):
            raise word
        return member, word

    def kill(self, member: Member) -> None:
        """Kill a process by SIGKILL. What it told before is still to be heard, and then that it is `Silent`."""
        member.child.kill()
        member.listener.join(PATIENCE)

    def _listen(self, member: Member) -> None:
        try:
            while True:
                self._heard.put((member, member.child.hear()))
        except (EOFError, OSError):  # killed, perhaps in the middle of a word
            self._heard.put((member, Silent()))
        except BaseException as error:  # it failed, and the test is told why
            self._heard.put((member, error))
