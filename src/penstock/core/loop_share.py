"""`LoopShare`: how many calls of coroutines run before the loop gets to everything else again."""

from __future__ import annotations


class LoopShare:
    """Lets so many calls run in one iteration of an event loop; the others wait for the next, in their order.

    For calls that seldom wait: thousands of them at once, or one task that makes them without end, would keep the loop
    from all its other tasks. Of several loops that share one, each lets its own calls run on.
    """

    __slots__ = ("_calls", "_round", "left")

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._round = 0
        self.left = calls
        """How many more calls may run. A caller that takes one without `take` checks it, and subtracts 1.

        Below 0 where two loops did so at the same moment.
        """

    async def take(self) -> None:
        """Return when it is the turn of this call."""
        import asyncio

        while self.left <= 0:
            before = self._round
            await asyncio.sleep(0)
            if self._round == before:  # the first that goes on in this iteration
                self._round += 1
                self.left = self._calls
        self.left -= 1
