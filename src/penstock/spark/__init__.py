"""The data pipeline on Spark: the data source `penstock` and `Pipeline`.

Everything that uses PySpark is here, and only here: `import penstock` works without it.

May import: `engine` and the packages below it, and PySpark (the extra `spark`).
"""

from typing import TYPE_CHECKING

from penstock.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.spark.pipeline.file import load_pipeline
    from penstock.spark.pipeline.pipeline import Pipeline
    from penstock.spark.source.data_source import PenstockDataSource, register
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "pipeline.file": "load_pipeline",
            "pipeline.pipeline": "Pipeline",
            "source.data_source": "PenstockDataSource register",
        },
    )

__all__ = [
    "PenstockDataSource",
    "Pipeline",
    "load_pipeline",
    "register",
]
