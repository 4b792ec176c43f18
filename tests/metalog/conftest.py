"""Every backend that the metadata log's contract is tested on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from penstock.metalog import InProcessMetadataLog, KafkaMetadataLog, ObjectMetadataLog
from penstock.storage import open_store
from tests.metalog.feeds import AnyLog
from tests.support.kafka_broker import kafka_bootstrap, mortal_broker
from tests.support.servers import BUCKET, S3Server

__all__ = ["kafka_bootstrap", "mortal_broker"]

# How many publishes in process take as long as one here, roughly.
COSTS = {"in-process": 1, "memory": 25, "s3": 1000, "kafka": 200}
STORED = ["memory", pytest.param("s3", marks=pytest.mark.slow), "kafka"]


class Backend:
    """Opens logs of one kind: those that are stored always the same log, the others a new one."""

    def __init__(self, name: str, open_log: Callable[[int], AnyLog]) -> None:
        self.name = name
        self._open = open_log
        self._logs: list[AnyLog] = []

    def open(self, partition_count: int) -> AnyLog:
        self._logs.append(self._open(partition_count))
        return self._logs[-1]

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def share(self, count: int) -> int:
        """As many of so many publishes as this backend has time for, but always some."""
        return max(count // COSTS[self.name], min(count, 12))


def _opener(name: str, request: pytest.FixtureRequest) -> Callable[[int], AnyLog]:
    fresh: str = request.getfixturevalue("fresh_name")
    match name:
        case "in-process":
            return InProcessMetadataLog
        case "memory":
            return lambda count: ObjectMetadataLog(f"memory://{fresh}", count)
        case "s3":
            s3: S3Server = request.getfixturevalue("s3_server")
            return lambda count: ObjectMetadataLog(open_store(f"s3://{BUCKET}/{fresh}", **s3.options), count)
        case _:
            bootstrap: str = request.getfixturevalue("kafka_bootstrap")
            return lambda count: KafkaMetadataLog(bootstrap, fresh, create=True, partition_count=count)


@pytest.fixture(params=["in-process", *STORED])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend, with nothing in it."""
    backend = Backend(request.param, _opener(request.param, request))
    yield backend
    backend.close()


@pytest.fixture(params=STORED)
def stored(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each backend whose logs outlive those who have them open."""
    backend = Backend(request.param, _opener(request.param, request))
    yield backend
    backend.close()


@pytest.fixture
def log(backend: Backend) -> AnyLog:
    """An empty log of three partitions."""
    return backend.open(3)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns a hundred times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)
