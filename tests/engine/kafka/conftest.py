"""A real broker for the tests of receivers, senders and imports."""

from __future__ import annotations

from tests.support.kafka_broker import kafka_bootstrap

__all__ = ["kafka_bootstrap"]
