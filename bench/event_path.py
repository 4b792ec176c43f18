"""`python -m bench.event_path`: the functions that one event goes through, from `push` to its deletion, measured.

It runs every step for one event with a profile hook on every thread, and writes down each function of Penstock when it
is first called. `docs/design/architecture.md` has the table that this prints, and says what is counted. `--write` puts
the table there; `--list` prints the functions.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from penstock import DurableEventQueue, Producer
from penstock.buffer import GarbageCollector
from penstock.engine import ship
from penstock.spark import PenstockDataSource, Pipeline

SOURCE = Path(penstock.__file__).parent
_FOLDER = f"{SOURCE}/"
PAGE = Path(__file__).parents[1] / "docs" / "design" / "architecture.md"
_LEAST_STATEMENTS = 6
STAGES = {
    "push": "the application hands the event over, and it is synced to the disk of its host",
    "ship": "a block is taken from the queue, and handed to a producer",
    "batch": "the producer encodes the batch and writes its object",
    "enqueue": "the manifest gets the batch's location, by compare-and-set",
    "plan": "a Spark query's planner decides which entries make up the next block",
    "read": "a task fetches the batch, decodes it, and parses it into columns",
    "table": "dead letters and rows are staged and committed",
    "ack": "the next look of the planner acks what is committed",
    "collect": "a cycle of the collector sets the floor, and a later one deletes the object",
}
_THREADS = {"shipper": "ship", "writer": "batch", "enqueuer": "enqueue"}  # in the names of threads
_WAITING = "pipeline"
_NOT_SPARKS = (*_THREADS, _WAITING, "MainThread")  # threads that fill a table's buffer, or wait for its query
_EVENT = b'{"id": 7}'
_NO_EVENT = b"this is not JSON"
_COLUMNS = "id bigint"
_MAX_WAIT = 120.0  # seconds
_LATER = 3600.0  # seconds: more than a grace period
_BEGIN, _END = "<!-- event path: begin -->", "<!-- event path: end -->"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of Penstock."""

    file: str
    name: str
    line: int


class Visits:
    """The functions that each stage called, in the order of their first calls."""

    def __init__(self) -> None:
        self._called: dict[str, dict[Function, None]] = {stage: {} for stage in STAGES}
        self._stage: str | None = None

    def watch(self) -> None:
        """Have the hook in this thread, and in those that are started from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Count what is called here. A producer's threads and the shipper have a stage of their own."""
        self._stage = stage
        try:
            yield
        finally:
            self._stage = None

    @property
    def short(self) -> int:
        """How many functions are not counted, as they are short."""
        return sum(not is_counted(one) for one in {one for called in self._called.values() for one in called})

    def by_stage(self) -> dict[str, list[Function]]:
        """Every function once, in the first stage that calls it."""
        seen = set[Function]()
        found = {}
        for stage, called in self._called.items():
            found[stage] = [one for one in called if one not in seen and is_counted(one)]
            seen.update(called)
        return found

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        stage = self._stage
        if event != "call" or stage is None or not code.co_filename.startswith(_FOLDER):
            return
        name = threading.current_thread().name
        if stage == "table" and any(part in name for part in _NOT_SPARKS):
            return
        stage = next((own for part, own in _THREADS.items() if part in name), stage)
        function = Function(code.co_filename.removeprefix(_FOLDER), code.co_qualname, code.co_firstlineno)
        self._called[stage].setdefault(function)


@functools.cache
def _definitions(file: str) -> dict[int, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file, by the line of their first decorator, or of `def`."""
    found = {}
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[min([node.lineno, *(one.lineno for one in node.decorator_list)])] = node
    return found


def is_counted(function: Function) -> bool:
    """Whether a reader who follows the event stops at this function: a shorter one is read where it is called."""
    node = _definitions(function.file).get(function.line)
    return node is not None and not node.name.startswith("__") and _statements(node) >= _LEAST_STATEMENTS


def _statements(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return sum(isinstance(one, ast.stmt) for part in body for one in ast.walk(part))


def follow(root: Path, visits: Visits) -> None:
    """Take one event from `push` to its deletion. Another one went before it: opening is not counted."""
    where = f"memory://{uuid.uuid4()}"
    source = PenstockDataSource({"path": where, "format": "json", "columns": _COLUMNS, "pollInterval": "0"})
    reader: Any = source.streamReader(StructType([StructField("id", LongType())]))
    visits.watch()
    stop = threading.Event()
    with DurableEventQueue(root / "outbox") as queue:
        shipper = threading.Thread(target=ship, args=(queue, where), kwargs={"stop": stop}, name="shipper")
        shipper.start()
        _ship(queue)
        before = reader.initialOffset()
        while (start := reader.latestOffset(before, None)) != before:
            list(reader.read(*reader.partitions(before, start)))
            before = start
        with visits.during("push"):
            _ship(queue)
        stop.set()
        shipper.join()
    with visits.during("plan"):
        end = reader.latestOffset(start, None)
        [partition] = reader.partitions(start, end)
    with visits.during("read"):
        [columns] = reader.read(partition)
    assert columns.num_rows == 1
    _fill_table(root, visits)
    with visits.during("ack"):
        reader.latestOffset(end, None)
    reader.stop()
    now = time.time()
    collectors = [GarbageCollector(where, clock=functools.partial(float, now + late)) for late in (_LATER, 2 * _LATER)]
    with visits.during("collect"):
        reports = [collector.collect_once() for collector in collectors]
    assert reports[-1].deleted == 2


def _ship(queue: DurableEventQueue[bytes]) -> None:
    queue.push(_EVENT)
    while not queue.is_empty:
        time.sleep(0.01)


def _fill_table(root: Path, visits: Visits) -> None:
    """Give an event, and one that is none, to a running pipeline. Its tasks are other processes."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    blocks = threading.Semaphore(0)
    pipeline = (
        Pipeline(source=str(root / "events"), checkpoint=str(root / "checkpoint"))
        .parse("json", schema=_COLUMNS)
        .dead_letters(str(root / "letters"))
        .to_parquet(str(root / "table"))
        .on_block(lambda _: blocks.release())
    )

    def give_a_second() -> None:
        try:
            _wait_for_block(blocks)
            with visits.during("table"):
                producer.produce([_EVENT, _NO_EVENT]).result()
                _wait_for_block(blocks)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # which ends a run after the block in hand

    with Producer(root / "events") as producer, ThreadPoolExecutor(1, thread_name_prefix=_WAITING) as waiting:
        producer.produce([_EVENT, _NO_EVENT]).result()
        given = waiting.submit(give_a_second)
        done = pipeline.run(spark, trigger="asap")
        given.result()
    spark.stop()
    assert (done.rows, done.dead_letters, done.blocks) == (2, 2, 2)


def _wait_for_block(blocks: threading.Semaphore) -> None:
    if not blocks.acquire(timeout=_MAX_WAIT):
        raise TimeoutError(f"the pipeline has not finished a block within {_MAX_WAIT:.0f} seconds")


def table(by_stage: dict[str, list[Function]]) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| stage | what happens | functions | files | jumps | back | files that come in here, in order |"
    yield "|---|---|---:|---:|---:|---:|---|"
    seen = set[str]()
    file = ""
    totals = [0, 0, 0, 0]
    for stage, functions in by_stage.items():
        new = list[str]()
        jumps = back = 0
        for one in functions:
            if one.file == file:
                continue
            jumps += bool(file)
            back += one.file in seen
            file = one.file
            if file not in seen:
                new.append(file)
                seen.add(file)
        counts = [len(functions), len(new), jumps, back]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        files = ", ".join(f"`{one}`" for one in new)
        yield f"| **{stage}** | {STAGES[stage]} | {' | '.join(map(str, counts))} | {files} |"
    yield f"| **all** | | {' | '.join(f'**{total}**' for total in totals)} | |"


def write(page: Path, lines: list[str]) -> None:
    """Put the table into the page, in place of the one that is there."""
    text = page.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        sys.exit(f"{page} has no place for the table: put {_BEGIN} and {_END} where it belongs")
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]))


def main() -> None:
    """Measure, and print the table, or write it into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.event_path", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print every function that is counted")
    parser.add_argument("--write", nargs="?", type=Path, const=PAGE, help=f"write the table into a page ({PAGE.name})")
    options = parser.parse_args()
    visits = Visits()
    with tempfile.TemporaryDirectory() as root:
        follow(Path(root), visits)
    by_stage = visits.by_stage()
    lines = list(table(by_stage))
    if options.list:
        print(*(f"{stage} {one.file} {one.name}" for stage, all_ in by_stage.items() for one in all_), sep="\n")
    if options.write:
        write(options.write, lines)
    print(*lines, f"Not counted: {visits.short} functions that are short, or special methods.", sep="\n")


if __name__ == "__main__":
    main()
