"""Every backend that the metadata log's contract is tested on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.metalog.in_process import InProcessMetadataLog
from penstock.metalog.kafka.log import KafkaMetadataLog
from penstock.metalog.log import MetadataLog
from penstock.metalog.object.log import ObjectMetadataLog
from penstock.storage import open_store
from tests.support.kafka_broker import kafka_bootstrap, mortal_broker
from tests.support.servers import BUCKET, S3Server

__all__ = ["kafka_bootstrap", "mortal_broker"]

# How many publishes in process take as long as one here, roughly.
COSTS = {"in-process": 1, "memory": 25, "disk": 200, "s3": 1000, "kafka": 200}
STORED = [name for name in COSTS if name != "in-process"]


class Backend:
    """Opens logs of one kind: those that are stored always the same log, the others a new one."""

    def __init__(self, name: str, open_log: Callable[[int], MetadataLog]) -> None:
        self.name = name
        self._open = open_log
        self._logs: list[MetadataLog] = []

    def open(self, partition_count: int) -> MetadataLog:
        self._logs.append(self._open(partition_count))
        return self._logs[-1]

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def share(self, count: int) -> int:
        """As many of so many publishes as this backend has time for, but always some."""
        return max(count // COSTS[self.name], min(count, 12))


def _opener(name: str, request: pytest.FixtureRequest) -> Callable[[int], MetadataLog]:
    fresh: str = request.getfixturevalue("fresh_name")
    match name:
        case "in-process":
            return InProcessMetadataLog
        case "memory":
            return lambda count: ObjectMetadataLog(f"memory://{fresh}", count)
        case "disk":
            folder: Path = request.getfixturevalue("tmp_path")
            return lambda count: ObjectMetadataLog(folder / "log", count)
        case "s3":
            s3: S3Server = request.getfixturevalue("s3_server")
            return lambda count: ObjectMetadataLog(open_store(f"s3://{BUCKET}/{fresh}", **s3.options), count)
        case _:
            bootstrap: str = request.getfixturevalue("kafka_bootstrap")
            return lambda count: KafkaMetadataLog(bootstrap, fresh, create=True, partition_count=count)


@pytest.fixture(params=COSTS)
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
def log(backend: Backend) -> MetadataLog:
    """An empty log of three partitions."""
    return backend.open(3)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns a hundred times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)
