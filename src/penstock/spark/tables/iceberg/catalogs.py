"""Names of tables, and the catalogs that know where the tables are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table

from penstock.errors import InvalidInput, NotFound, PenstockError, StorageError
from penstock.spark.tables.iceberg.durable_files import (
    IMPLEMENTATION,
    DurableFileIO,
    is_local,
    make_durable_directory,
)
from penstock.storage import local_path, redact, secrets_of, sync_directory

_SQLITE_FILE = "catalog.db"
_SQLITE_WAIT_MS = 30_000
_LOADS = 5  # tries: a file of metadata that is read may be replaced and removed meanwhile
_NO_SECRETS = frozenset({"type", "warehouse", "py-io-impl", "py-catalog-impl", "uri", "s3.endpoint", "s3.region"})
_STORE_OPTIONS = {  # the later of two counts
    "client.region": "region",
    "client.access-key-id": "access_key_id",
    "client.secret-access-key": "secret_access_key",
    "client.session-token": "session_token",
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table: its catalog, its namespace, and its own.

    >>> name = TableName.parse("lake.web.raw.clicks")
    >>> name.catalog, name.namespace, name.table, str(name)
    ('lake', ('web', 'raw'), 'clicks', 'lake.web.raw.clicks')
    """

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @classmethod
    def parse(cls, name: str) -> TableName:
        """Read `catalog.namespace.table`. Raises `InvalidInput`."""
        parts = name.split(".")
        if len(parts) < 3 or not all(part.strip() == part and part for part in parts):
            raise InvalidInput(f"an Iceberg table is named catalog.namespace.table, not {name!r}")
        return cls(parts[0], tuple(parts[1:-1]), parts[-1])

    @property
    def identifier(self) -> tuple[str, ...]:
        """What its catalog calls it."""
        return (*self.namespace, self.table)

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.identifier))


class OpenCatalog:
    """A catalog, with the two things that pyiceberg leaves open: durable files, and errors without credentials."""

    def __init__(self, name: str, properties: Mapping[str, str] | None) -> None:
        self._secrets = _secrets_of(properties or {})
        self._sqlite: str | None = None
        with self.errors(f"could not open the Iceberg catalog {name!r}", InvalidInput):
            self.catalog = load_catalog(name, **_completed(name, properties))
        self._secrets = _secrets_of(self.catalog.properties)
        self._sync_sqlite()
        warehouse = self.catalog.properties.get("warehouse")
        if warehouse and is_local(warehouse):
            # For the files of metadata, which the catalog writes itself.
            self.catalog.properties.setdefault(PY_IO_IMPL, IMPLEMENTATION)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.catalog.name!r})"

    @property
    def place(self) -> str:
        """Where the catalog is, without credentials."""
        properties = self.catalog.properties
        if self._sqlite:
            return self._sqlite
        return redact(properties.get("uri") or properties.get("warehouse") or self.catalog.name, self._secrets)

    def load(self, name: TableName) -> Table | None:
        """The table as it is now; None where there is none."""
        tries = _LOADS
        while True:
            tries -= 1
            try:
                table = self.catalog.load_table(name.identifier)
                break
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except FileNotFoundError as error:
                # Commits of others have removed the file of metadata between the two steps of a load.
                if not tries:
                    raise StorageError(f"the metadata of the table {name} is gone: {self.redact(error)}") from None
            except Exception as error:  # noqa: BLE001  whatever a catalog and its store raise
                raise StorageError(f"could not load the table {name}: {self.redact(error)}") from None
        if is_local(table.location()) and PY_IO_IMPL not in self.catalog.properties:
            table.io = DurableFileIO(table.io.properties)
        return table

    def create_namespace(self, name: TableName) -> None:
        """Create the namespace of a table, with those above it, unless they are there."""
        for depth in range(1, len(name.namespace) + 1):
            namespace = name.namespace[:depth]
            if self.catalog.namespace_exists(namespace):
                continue
            try:
                self.catalog.create_namespace(namespace)
            except NamespaceAlreadyExistsError:
                continue
            except Exception:
                # A catalog in SQL raises what its database does if another driver was faster.
                if not self.catalog.namespace_exists(namespace):
                    raise

    def sync(self) -> None:
        """Make durable what was read from the catalog: its writer may have been killed before it did."""
        if self._sqlite:
            sync_directory(os.path.dirname(self._sqlite))

    def redact(self, error: BaseException) -> str:
        """An error's text, without credentials."""
        return redact(f"{type(error).__name__}: {error}", self._secrets)

    @contextmanager
    def errors(self, what: str, kind: type[PenstockError] = StorageError) -> Iterator[None]:
        """Turn whatever pyiceberg, a database or a store raises into one of ours, without credentials.

        The cause is not chained: its text may have them.
        """
        try:
            yield
        except PenstockError:
            raise
        except FileNotFoundError as error:
            raise (NotFound if kind is StorageError else kind)(f"{what}: {self.redact(error)}") from None
        except Exception as error:  # noqa: BLE001  their errors have no root of their own
            raise kind(f"{what}: {self.redact(error)}") from None

    def _sync_sqlite(self) -> None:
        """Have SQLite make each commit durable before it says so.

        With its default (`FULL`) a power cut right after a commit may bring back the journal that undoes it. A
        connection is closed after each use: none goes into a forked child.
        """
        engine = getattr(self.catalog, "engine", None)
        if engine is None or engine.dialect.name != "sqlite" or not engine.url.database:
            return
        from sqlalchemy import create_engine, event
        from sqlalchemy.pool import NullPool

        engine.dispose()
        fresh = create_engine(engine.url, poolclass=NullPool)

        @event.listens_for(fresh, "connect")
        def _(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(f"PRAGMA busy_timeout = {_SQLITE_WAIT_MS}")

        self.catalog.engine = fresh  # type: ignore[attr-defined]
        self._sqlite = os.path.realpath(engine.url.database)


def store_options(properties: Mapping[str, object]) -> dict[str, str]:
    """Properties of a table's files as options of a store, for what is kept beside the table in the same bucket.

    >>> store_options({"s3.endpoint": "http://minio:9000", "s3.region": "eu-west-1", "warehouse": "s3://lake"})
    {'endpoint': 'http://minio:9000', 'region': 'eu-west-1', 'allow_http': 'true'}
    """
    options = {option: str(properties[name]) for name, option in _STORE_OPTIONS.items() if name in properties}
    return options | ({"allow_http": "true"} if options.get("endpoint", "").startswith("http://") else {})


def _secrets_of(properties: Mapping[str, str]) -> list[str]:
    """Values that may be credentials: of properties that are not known to have none, of addresses, the environment."""
    given = [str(value) for key, value in properties.items() if key not in _NO_SECRETS]
    parts = str(properties.get("credential", "")).split(":", 1)  # the id of a client, and its secret
    addresses = {f"{key} endpoint": properties[key] for key in ("uri", "s3.endpoint") if key in properties}
    return [text for text in (*given, *parts) if len(text) > 3] + secrets_of(addresses)


def _completed(name: str, properties: Mapping[str, str] | None) -> dict[str, str]:
    """The properties of a catalog, with those of the embedded one where only a directory is given."""
    if properties is None:
        return {}
    if not all(isinstance(word, str) for entry in properties.items() for word in entry):
        raise InvalidInput("catalog must be a mapping of pyiceberg's properties, each a text")
    known = dict(properties)
    database = embedded_catalog(known)
    if database is None:
        return known
    directory = os.path.dirname(database)
    make_durable_directory(directory)
    _create_sqlite(name, database)
    return known | {"type": "sql", "uri": f"sqlite:///{database}", "warehouse": directory}


def embedded_catalog(properties: Mapping[str, str]) -> str | None:
    """The file of the catalog that a warehouse has of its own; None where the properties name another one.

    Raises `InvalidInput` for a warehouse that can have none.
    """
    warehouse = properties.get("warehouse")
    if any(key in properties for key in ("type", "uri", "py-catalog-impl")) or warehouse is None:
        return None
    if not is_local(warehouse):
        raise InvalidInput(
            f"the warehouse {redact(warehouse)} needs a catalog that its writers share: give catalog= its type and "
            "uri, for example {'type': 'rest', 'uri': 'https://...'}; only a directory on this host's disk has one of "
            "its own"
        )
    return os.path.join(local_path(warehouse), _SQLITE_FILE)


def _create_sqlite(name: str, path: str) -> None:
    """Create the tables of the embedded catalog. Of two drivers at once the slower waits for the faster."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import OperationalError

    deadline = time.monotonic() + _SQLITE_WAIT_MS / 1000
    while True:
        try:
            catalog = SqlCatalog(name, uri=f"sqlite:///{path}")
        except OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            catalog.engine.dispose()
            return
