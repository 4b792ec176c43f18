"""A standalone cluster on this machine: a master and workers, each a process in a session of its own.

The executors and Python workers that a worker starts stay in its session, so a whole host is one session, and can be
killed as one.
"""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pyarrow
import pyspark

from tests.support.process_sessions import Session

SPARK_HOME = Path(pyspark.__file__).parent
START = 180.0  # seconds that a JVM may take to start on a machine that has much else to do

# Tests wait for lines of the log, and by default Spark logs nothing of this.
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
"""

# A JVM that lives for seconds need not be compiled for days.
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Small, and here: everything else is as on any cluster.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.extraJavaOptions": _SMALL_JVM,
    "spark.executor.extraJavaOptions": _SMALL_JVM,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both workers take part from the first task on
}


class Cluster:
    """A master, and the workers that were started so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._conf = folder / "conf"
        self._conf.mkdir(parents=True)
        (self._conf / "log4j2.properties").write_text(LOGGING)
        (self._conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
        )
        self._sessions: list[Session] = []
        self._workers: list[Session] = []
        self.python = python_without_penstock(folder / "python")
        words = ["master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._master = self._start("master", words)
        self.url = self._master.hear(r"Starting Spark master at (spark://\S+)", START)[1]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a host of the cluster: nothing in it leads to Penstock."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG", "TZ") if name in os.environ}
        return {
            **kept,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self._conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
            **more,
        }

    @property
    def workers(self) -> list[Session]:
        """The hosts that live."""
        return [worker for worker in self._workers if not worker.has_ended()]

    def bring_workers_to(self, count: int) -> None:
        """Start hosts of one core each until there are so many, and return when the master knows them."""
        where = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "768m", self.url]
        names = [f"worker-{len(self._workers) + number}" for number in range(count - len(self.workers))]
        started = [self._start(name, ["worker.Worker", *where]) for name in names]
        self._workers += started
        for worker in started:
            worker.hear("Successfully registered with master", START)

    def submit(self, script: str, folder: Path, **environment: str) -> Session:
        """Run a shell script, as typed at a host of the cluster; its driver is in the script's session."""
        driver = Session(["sh", "-eu", "-c", script], self.environment(**environment), folder)
        self._sessions.append(driver)
        return driver

    def clear_away(self) -> None:
        """Leave nothing of it behind."""
        for session in reversed(self._sessions):
            session.kill()

    def _start(self, name: str, words: list[str]) -> Session:
        folder = self._folder / name
        folder.mkdir()
        places = {"SPARK_WORKER_DIR": str(folder / "work"), "SPARK_LOCAL_DIRS": str(folder / "local")}
        spark_class, (role, *rest) = SPARK_HOME / "bin" / "spark-class", words
        started = Session([spark_class, f"org.apache.spark.deploy.{role}", *rest], self.environment(**places), folder)
        self._sessions.append(started)
        return started


def python_without_penstock(folder: Path) -> Path:
    """A Python that has what this one has installed, but for Penstock.

    A path in a `.pth` file is searched, and the `.pth` files that lie there are not read: one of those is how an
    editable install is found.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{Path(pyarrow.__file__).parents[1]}\n")
    return python
