"""A real Kafka for tests: a broker that runs already, or one of our own that may be killed and started again.

`PENSTOCK_KAFKA` names the bootstrap servers of a broker that runs; `PENSTOCK_KAFKA_JARS`, which `make test-kafka` sets,
a folder with the jars of one to start. Where neither is set, whatever needs a broker is skipped.
"""

from __future__ import annotations

import base64
import os
import random
import re
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.servers import serving

NO_BROKER = "no Kafka broker: `make test-kafka` starts one"

_STARTED = re.compile(r"nodeId=(\d+)\] Kafka Server started")
_PORTS = range(20_000, 30_000)  # below the ephemeral ports: it is still free when a killed broker starts again
_SMALL = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable")
_QUIET = tuple(
    f"-Dorg.slf4j.simpleLogger.{option}"
    for option in ("defaultLogLevel=error", "log.kafka.server.KafkaRaftServer=info", "log.org.apache.kafka=error")
)


class Broker:
    """A single node of Kafka (KRaft), broker and controller in one, on 127.0.0.1; its data are in a folder."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self._jars = jars
        self._folder = folder
        self._port, controller = _free_ports()
        self._running = ExitStack()
        settings = {
            "process.roles": "broker,controller",
            "node.id": self._port,  # it says its id when it has started
            "controller.quorum.voters": f"{self._port}@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "log.dirs": folder / "data",
            "broker.session.timeout.ms": 1000,  # so long one that is started again waits for the one that was killed
            "broker.heartbeat.interval.ms": 200,
            "num.io.threads": 2,
            "num.network.threads": 2,
            "num.partitions": 7,  # of a topic that came to be by itself, which no test wants
            "auto.create.topics.enable": "true",
            "log.retention.check.interval.ms": 200,
            "log.segment.delete.delay.ms": 0,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        # The first byte is 0: an id that began with a dash would be an option of the command.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)),
            check=True,
            capture_output=True,
        )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, also once more, and return when it serves."""
        self._running.enter_context(serving(self._java("kafka.Kafka", str(self._properties)), _STARTED))

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self._running.close()

    @property
    def _properties(self) -> Path:
        return self._folder / "server.properties"

    def _java(self, *args: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        return [java, *_SMALL, *_QUIET, "-cp", f"{self._jars}/*", *args]


@contextmanager
def broker_of_our_own(folder: Path) -> Iterator[Broker]:
    """Run a broker that a test may kill. Skips where there are no jars."""
    jars = os.environ.get("PENSTOCK_KAFKA_JARS")
    if not jars:
        pytest.skip(
            NO_BROKER if "PENSTOCK_KAFKA" not in os.environ else "the broker of PENSTOCK_KAFKA is not to be killed"
        )
    broker = Broker(Path(jars), folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder / "data", ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap servers of a broker that all tests share, each with topics of its own."""
    given = os.environ.get("PENSTOCK_KAFKA")
    if given:
        yield given
        return
    with broker_of_our_own(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that the tests of one file kill and start again."""
    with broker_of_our_own(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def _free_ports() -> tuple[int, int]:
    """Two ports that are free now. Another process may take one before the broker does: then its start fails."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.sample(_PORTS, 100):
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == 2:
                return found[0], found[1]
    raise RuntimeError(f"no two free ports from {_PORTS.start} to {_PORTS.stop}")
