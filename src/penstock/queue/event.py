"""`DurableEvent`: an event and the id under which it is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Event = TypeVar("Event", covariant=True)


@dataclass(frozen=True, slots=True)
class DurableEvent(Generic[Event]):
    """An event of a durable queue. The id is what `ack` and `nack` ask for."""

    id: int
    event: Event
