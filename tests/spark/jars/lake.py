"""A catalog of Iceberg tables that both Penstock and Iceberg's own jar open: SQLite, in a warehouse on this disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Lake:
    """The catalog. Spark remembers catalogs by their names, so each has a name that no other test has."""

    def __init__(self, spark: Any, warehouse: Path, name: str) -> None:
        warehouse.mkdir()
        self._spark = spark
        self.catalog = {"warehouse": str(warehouse)}
        """For Penstock."""
        self.table = f"{name}.web.clicks"
        """The name of a table in it."""
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": f"jdbc:sqlite:{warehouse}/catalog.db",
            ".warehouse": str(warehouse),
            ".cache-enabled": "false",
        }
        for setting, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{name}{setting}", value)

    def read(self) -> Any:
        """The table, by Iceberg's jar."""
        return self._spark.table(self.table)
