"""`Reach`: whether a client of Kafka reaches a broker. Where it does not, its receive calls just return nothing."""

from __future__ import annotations

import time
from typing import Any

from penstock.errors import StorageError
from penstock.metalog import KafkaConfig, kafka_client

UNREACHABLE_AFTER = 60.0
_PROBE_SECONDS = 5.0


class Reach:
    """How long no broker was reached. The client calls `note`, in the calls that receive."""

    def __init__(self, owner: object, config: KafkaConfig, unreachable_after: float) -> None:
        self._owner = owner
        self._config = config
        self._client = kafka_client()
        self._unreachable_after = unreachable_after
        self._since: float | None = None  # the first failure after the last message
        self._reason = ""
        self._is_fatal = False

    def note(self, error: Any) -> None:
        """A failure that the client reports. It does not report that it has a connection again."""
        if self._since is None:
            self._since = time.monotonic()
        self._is_fatal = self._is_fatal or error.fatal()
        if error.code() != self._client.KafkaError._ALL_BROKERS_DOWN or not self._reason:  # it has no reason in it
            self._reason = self._config.without_secrets(error.str())

    def note_message(self) -> None:
        """There is a message, so there is a broker."""
        self._since, self._reason = None, ""

    def check(self, consumer: Any) -> None:
        """Raise `StorageError` where failures began long ago, nothing came since, and no broker answers now."""
        if self._since is None:
            return
        seconds = time.monotonic() - self._since
        if seconds < self._unreachable_after and not self._is_fatal:
            return
        try:
            if not self._is_fatal:
                consumer.list_topics(timeout=_PROBE_SECONDS)
                return
        except self._client.KafkaException as error:
            self._reason = self._reason or self._config.without_secrets(error)
        finally:
            reason = self._reason
            self.note_message()  # the next failure is a new beginning
        what = "it cannot go on" if self._is_fatal else f"no broker was reached in {seconds:.0f} s"
        raise StorageError(f"{self._owner!r}: {what}: {reason}")
