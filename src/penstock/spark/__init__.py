"""The data pipeline on Spark: the data source `penstock` and `Pipeline`.

Everything that uses PySpark is here, and only here: `import penstock` works without it.

May import: `engine` and the packages below it, and PySpark (the extra `spark`).
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.spark.installed_java import OLDEST_JAVA, find_java
    from penstock.spark.pipeline.block_loop import BlockReport, query_of
    from penstock.spark.pipeline.check import Finding, check_pipeline
    from penstock.spark.pipeline.file import PipelineFile, load_pipeline
    from penstock.spark.pipeline.pipeline import Pipeline
    from penstock.spark.source.data_source import PenstockDataSource, register
    from penstock.spark.source.options import size_in_bytes
    from penstock.spark.tables.contract import Position, Table, TableInfo
    from penstock.spark.tables.existing import KINDS, OpenedTable, open_existing
    from penstock.spark.tables.letters import Filter, Ledger, Replay, Replayed, StoredLetter, Target, letters_in
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "installed_java": "OLDEST_JAVA find_java",
            "pipeline.block_loop": "BlockReport query_of",
            "pipeline.check": "Finding check_pipeline",
            "pipeline.file": "PipelineFile load_pipeline",
            "pipeline.pipeline": "Pipeline",
            "source.data_source": "PenstockDataSource register",
            "source.options": "size_in_bytes",
            "tables.contract": "Position Table TableInfo",
            "tables.existing": "KINDS OpenedTable open_existing",
            "tables.letters": "Filter Ledger Replay Replayed StoredLetter Target letters_in",
        },
    )

__all__ = [
    "BlockReport",
    "PenstockDataSource",
    "Pipeline",
    "load_pipeline",
    "register",
]
