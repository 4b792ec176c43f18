"""Changes of keys that are merged into a table whatever is killed, and the dictionary that the table must equal."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from penstock import Producer
from penstock.buffer import ProducerConfig
from penstock.engine import ParseFormat
from penstock.spark import Pipeline
from penstock.spark.pipeline.plan import ParseStep, Plan, Target
from penstock.spark.source.options import OnError
from tests.spark.kills.job import Opens
from tests.spark.kills.kinds import UPSERTS, read_columns, to_letters, to_rows

Change: TypeAlias = dict[str, Any]
State: TypeAlias = dict[int, tuple[int, str]]

_SCHEMA = "id bigint, op string, version bigint, value string"
_COLUMNS = ["id", "version", "value"]
_PER_BLOCK = 2  # batches
_DELETES = 0.3  # of the changes after the first of each key


@dataclass(frozen=True)
class ChangesJob:
    """The places of a job that merges changes into a table of a kind of `UPSERTS`."""

    root: Path
    kind: str

    @property
    def buffer(self) -> Path:
        return self.root / "events"

    @property
    def rows(self) -> Path:
        return self.root / "rows"

    @property
    def letters(self) -> Path:
        return self.root / "letters"

    def pipeline(self) -> Pipeline:
        """The pipeline, with small blocks."""
        pipeline = Pipeline(self.buffer, self.root / "checkpoint", options=self._options)
        pipeline = to_letters(UPSERTS[self.kind], pipeline.parse("json", schema=_SCHEMA), self.letters)
        return to_rows(self.kind, pipeline, self.rows)

    def plan(self, open_rows: Opens, open_letters: Opens) -> Plan:
        """The same pipeline before it runs, and with other ways to open its two tables."""
        return Plan(
            str(self.buffer),
            f"file://{self.root / 'checkpoint'}",
            self._options,
            parse=ParseStep(ParseFormat.JSON, _SCHEMA, OnError.DLQ),
            dead_letters=Target("dead_letters", open_letters, str(self.letters)),
            sink=Target("rows", open_rows, str(self.rows)),
        )

    def produce(self, batches: list[list[Change]]) -> None:
        """Put changes into the buffer."""
        with Producer(self.buffer, ProducerConfig(flush_interval=3600)) as producer:
            for batch in batches:
                producer.produce([json.dumps(change).encode() for change in batch])
                producer.flush()

    def differences(self, wanted: Mapping[int, tuple[int, str]]) -> dict[str, int]:
        """How many rows are missing in the table or too many, for each reader that is not ours."""
        rows = Counter((key, *values) for key, values in wanted.items())
        found = read_columns(UPSERTS[self.kind], self.rows, _COLUMNS)
        return {
            reader: ((rows - Counter(theirs)) + (Counter(theirs) - rows)).total() for reader, theirs in found.items()
        }

    @property
    def _options(self) -> dict[str, str]:
        return {"pollInterval": "0.1", "maxBatchesPerTrigger": str(_PER_BLOCK)}


def changes(keys: int, count: int, per_batch: int, seed: int) -> tuple[list[list[Change]], State]:
    """So many changes in batches, and what the keys are after them.

    Each key is inserted, and then updated, deleted and inserted again, at random; keys that are not there are deleted
    too. Versions grow from batch to batch. Within one they are in any order: `order_by` says which is the last.
    """
    chance, state, all_changes = random.Random(seed), State(), list[Change]()
    first = chance.sample(range(keys), k=keys)
    for version in range(count):
        key = first[version] if version < keys else chance.randrange(keys)
        if version >= keys and chance.random() < _DELETES:
            state.pop(key, None)
            all_changes.append({"id": key, "op": "d", "version": version, "value": None})
            continue
        value = f"value {version}"
        all_changes.append({"id": key, "op": "u" if key in state else "c", "version": version, "value": value})
        state[key] = version, value
    batches = [all_changes[at : at + per_batch] for at in range(0, count, per_batch)]
    for batch in batches:
        chance.shuffle(batch)
    return batches, state
