"""The log of a Delta table, through delta-rs: the one place that calls it to look, to create and to commit.

A handle of delta-rs is one version of the table. It stays that version, also after its own commit; so each question and
each commit takes a fresh one. With no retries of delta-rs's own a commit succeeds only as the very next version after
the one its handle has seen: whatever was checked on that handle still holds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction
from pyspark.sql.types import StructType

from penstock.core import get_logger, printable
from penstock.errors import Conflict, InvalidInput, NotFound, StorageError
from penstock.spark.tables.contract import BlockId
from penstock.spark.tables.delta.committed import OURS, CommittedBlock, committed_block
from penstock.spark.tables.delta.features import check_readable, check_writable
from penstock.spark.tables.delta.files import StagedFile
from penstock.spark.tables.delta.restores import Survivors, survivors
from penstock.spark.tables.listed_files import ListedFile
from penstock.storage import redact, secrets_of

Handle: TypeAlias = deltalake.DeltaTable
"""One version of a table."""

COMPACTION = "penstock.compaction"
"""What of the first column's metadata is the name of the compaction that began last."""

_COMMITS_PER_CHECKPOINT = 100
_HISTORY_LIMITS = (10, 200, None)
_TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# A hook that fails after a commit makes the commit look failed. Checkpoints are made on their own.
_NO_HOOKS: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

_log = get_logger(__name__)


class DeltaLog:
    """The log of the table at a URL. What delta-rs raises becomes `StorageError`, without credentials.

    `Conflict` is raised by a commit for which another one was faster, which may be one's own earlier try.
    """

    def __init__(self, url: str, where: str, options: Mapping[str, object]) -> None:
        self.url = url
        """For messages."""
        self.where = where
        """For delta-rs: a path, or a URL."""
        self.storage_options = {name: _as_text(value) for name, value in options.items()} or None
        self._secrets = secrets_of(options)

    def load(self) -> Handle | None:
        """The newest version; None if there is no table."""
        with self.failing_to("look at"):
            try:
                return deltalake.DeltaTable(self.where, storage_options=self.storage_options)
            except TableNotFoundError:
                return None

    def create(self, columns: StructType, partition_by: Sequence[str]) -> None:
        """Create the table. Nothing happens if there is one, of whatever columns.

        Raises `Conflict` if another driver was faster. With retries delta-rs would create it a second time, on top.
        """
        with self.failing_to("create"):
            deltalake.DeltaTable.create(
                self.where,
                Schema.from_json(columns.json()),
                mode="ignore",
                partition_by=list(partition_by),
                storage_options=self.storage_options,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )

    def add_columns(self, handle: Handle, columns: StructType) -> None:
        """Add columns, or fields of structs, in a commit of their own."""
        with self.failing_to("add columns to"):
            handle.alter.add_columns(
                [Field.from_json(json.dumps(field.jsonValue())) for field in columns],
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )

    def announce_compaction(self, handle: Handle, name: str) -> None:
        """Write the name of a compaction into the table's metadata, in a commit of its own.

        Beside the first column, and not as a property: `set_table_properties` of delta-rs 1.6 adds the feature
        `variantType` to a table that has features, and other readers refuse it then.
        """
        with self.failing_to("announce a compaction of"):
            handle.alter.set_column_metadata(
                handle.schema().fields[0].name,
                {COMPACTION: name},
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_NO_HOOKS,
            )

    def announced_compaction(self, handle: Handle) -> object:
        """The name of the compaction that was announced last."""
        return handle.schema().fields[0].metadata.get(COMPACTION)

    def append(
        self, handle: Handle, block: BlockId, attempt: str, files: Sequence[StagedFile], rows: int | None = None
    ) -> None:
        """Commit files and the block's transaction, as the next version."""
        partition_by = handle.metadata().partition_columns
        now = time.time_ns() // 1_000_000
        actions = [
            AddAction(file.path, file.size, dict(zip(partition_by, file.values, strict=True)), now, True, file.stats)
            for file in files
        ]
        with self.failing_to("commit to"):
            handle.create_write_transaction(
                list(actions),
                "append",
                handle.schema(),
                partition_by,
                commit_properties=block_properties(
                    block, attempt, sum(file.rows for file in files) if rows is None else rows
                ),
                post_commithook_properties=_NO_HOOKS,
            )

    def state(self, handle: Handle) -> str:
        """All of a table that a writer depends on, but its rows."""
        metadata = handle.metadata()
        settings = metadata.configuration
        return repr((metadata.id, self.columns(handle).json(), metadata.partition_columns, settings, handle.protocol()))

    def columns(self, handle: Handle) -> StructType:
        """The table's columns, which Delta writes as Spark does."""
        schema = json.loads(handle.schema().to_json())
        for field in schema["fields"]:
            field["metadata"].pop(COMPACTION, None)
        found: StructType = StructType.fromJson(schema)
        return found

    def check_writable(self, handle: Handle, *, merges: bool) -> None:
        """Raise `InvalidInput` for a table that Penstock cannot write right."""
        columns = [(field.name, field.metadata or {}) for field in self.columns(handle)]
        check_writable(handle.protocol(), handle.metadata().configuration, columns, self.url, merges=merges)

    def check_readable(self, handle: Handle) -> None:
        """Raise `InvalidInput` for a table that Penstock cannot read right."""
        check_readable(handle.protocol(), handle.metadata().configuration, self.url)

    def transaction(self, handle: Handle, query: str) -> int | None:
        """The last version of a query that the table has."""
        with self.failing_to("look at"):
            return handle.transaction_version(query)

    def last_block(self, handle: Handle, query: str, version: int) -> CommittedBlock | None:
        """What the commit says that has this version of a query; None if it is not in the log any more."""
        for limit in _HISTORY_LIMITS:
            for block in self.blocks(handle, limit):
                if (block.query, block.version) == (query, version):
                    return block
        return None

    def blocks(self, handle: Handle, limit: int | None = None) -> Iterator[CommittedBlock]:
        """The blocks of the last commits that the log still has, the newest first."""
        with self.failing_to("read the history of"):
            history = handle.history(limit)
        for commit in history:
            block = committed_block(commit)
            if block is not None:
                yield block

    def survivors(self, handle: Handle, query: str) -> Survivors | None:
        """What restores of the table have left of a query's blocks; None if the log does not say."""
        for limit in _HISTORY_LIMITS:
            with self.failing_to("read the history of"):
                history = handle.history(limit)
            is_all = limit is None or len(history) < limit
            found = survivors(history, query, is_all=is_all)
            if found is not None or is_all:
                return found
        return None

    def files(self, handle: Handle) -> list[ListedFile]:
        """The files of the table, each with the values of its partition columns."""
        with self.failing_to("list the files of"):
            found = pa.table(handle.get_add_actions()).to_pylist()
        files = [
            # The log has paths as URLs have them.
            ListedFile(unquote(one["path"]), one["size_bytes"], dict(one.get("partition") or {}), one["num_records"])
            for one in found
        ]
        elsewhere = next((file.path for file in files if "://" in file.path or file.path.startswith("/")), None)
        if elsewhere is not None:
            raise InvalidInput(
                f"the table {self.url} has a file outside of it, {elsewhere}, which Penstock cannot read"
            )
        return files

    def checkpoint_interval(self, handle: Handle) -> int:
        """After how many commits a checkpoint is due."""
        given = handle.metadata().configuration.get("delta.checkpointInterval", "")
        return int(given) if given.isdecimal() and int(given) else _COMMITS_PER_CHECKPOINT

    def make_checkpoint(self) -> None:
        """Make a checkpoint of the newest version, and remove expired logs, as Delta's properties say."""
        handle = self.load()
        if handle is None:
            return
        with self.failing_to("make a checkpoint of"):
            handle.create_checkpoint()
            if handle.metadata().configuration.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
                handle.cleanup_metadata()

    @contextmanager
    def failing_to(self, what: str) -> Iterator[None]:
        """Turn what delta-rs raises into our errors, with no credential and no terminal's colours in them."""
        failure: StorageError | None = None
        try:
            yield
        except CommitFailedError as error:
            failure = Conflict(self._message(what, error))
        except FileNotFoundError as error:
            failure = NotFound(self._message(what, error))
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            failure = StorageError(self._message(what, error))
        except BaseException as error:
            # Delta-rs raises a plain `Exception` for what has no name, and its own bugs are panics.
            if type(error) is not Exception and type(error).__name__ != "PanicException":
                raise
            failure = StorageError(self._message(what, error))
        # Not from the cause: a text with a credential in it would be its context.
        if failure is not None:
            raise failure

    def _message(self, what: str, error: BaseException) -> str:
        text = " ".join(_TERMINAL_COLOURS.sub("", str(error)).split())
        return f"could not {what} the Delta table {self.url}: {printable(redact(text, self._secrets))}"


def block_properties(block: BlockId, attempt: str, rows: int) -> CommitProperties:
    """What a block's commit carries: its transaction, and where it ends."""
    now = time.time_ns() // 1_000_000
    return CommitProperties(
        # With the time: Delta forgets transactions without one never, and with an old one early.
        app_transactions=[Transaction(block.query, block.version, last_updated=now)],
        custom_metadata={
            f"{OURS}query": block.query,
            f"{OURS}version": block.version,
            f"{OURS}first": block.first,
            f"{OURS}end": block.end_text,
            f"{OURS}rows": rows,
            f"{OURS}attempt": attempt,
        },
        max_commit_retries=0,
    )


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
