"""What users run today, beside ours: JSON from a Kafka broker to Parquet by Spark's Kafka source, and from a buffer.

Both run in one session of Spark 4.0.0, the version whose Kafka source is in the registries with all its parts, in
turns, with the same 4 million events, schema and cores, each with a checkpoint, to the end of what is there
(`availableNow`). Spark's way is `from_json(value)` and its Parquet sink; ours is `Pipeline.parse("json").to_parquet`.
The topic has as many partitions as the buffer has batches. The broker runs on the same machine, and has what it serves
in the page cache, as the buffer's files are. Each table is read back: both have to have the same rows.

What is not the same: the broker is that of the tests, with 256 MB and the JVM's first compiler only, and uses the same
cores as Spark; how much that can be is in the row that only reads. Each way writes Parquet as it does by default: Spark
with Snappy, a file for each partition; ours with Zstandard, a file for each task.

It takes the broker of `bench kafka`, and what `scripts/spark-with-kafka` gets once by Maven and pip. Where one of them
cannot be had, this is left out, and says why. `PENSTOCK_BENCH_EVENTS` and `PENSTOCK_BENCH_ROUNDS` make it smaller.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.kafka import broker
from bench.spark_runs import BATCHES, EVENTS, json_events, write_buffer

_ROOT = Path(__file__).parent.parent


def run() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        root = Path(name)
        (root / "kafka").mkdir()
        try:
            home = _spark_with_kafka()
            servers = stack.enter_context(broker(root / "kafka"))
            topic = _fill_topic(servers)
        except (ImportError, RuntimeError) as error:
            print(f"JSON to Parquet beside Spark's Kafka source is left out: {error}")
            return
        write_buffer(root / "events" / "buffer", EVENTS)
        # Another Python, with that Spark: it measures, and prints the table.
        module = "bench.against_kafka_runs"
        command = [home / "venv/bin/python", "-m", module, root / "events", servers, topic, home / "jars"]
        path = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        subprocess.run(list(map(str, command)), cwd=_ROOT, env=_plain_environment() | {"PYTHONPATH": path}, check=True)


def _spark_with_kafka() -> Path:
    found = subprocess.run(
        [_ROOT / "scripts/spark-with-kafka", sys.executable], cwd=_ROOT, check=False, stdout=subprocess.PIPE, text=True
    )
    if found.returncode:
        raise RuntimeError("scripts/spark-with-kafka got no Spark with a Kafka source (see above)")
    return Path(found.stdout.strip())


def _plain_environment() -> dict[str, str]:
    """This environment without what would name another Spark or Python."""
    return {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYSPARK_PYTHON"}}


def _fill_topic(servers: str) -> str:
    """Write the events to a topic of its own, and return its name."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    plain: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
    topic = f"bench-{os.getpid()}"
    admin = AdminClient(plain)
    admin.create_topics([NewTopic(topic, BATCHES, 1)])[topic].result()
    producer = confluent_kafka.Producer(plain | {"acks": "all", "enable.idempotence": True, "linger.ms": 50})
    each = EVENTS // BATCHES
    for partition in range(BATCHES):
        for event in json_events(each, partition * each):
            while True:
                try:
                    producer.produce(topic, event, partition=partition)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError(f"the broker at {servers} did not take all events")
    return topic
