"""The data pipeline on Spark: the data source `penstock` and `Pipeline`.

What lives here: everything that knows PySpark, and nothing else does: `import penstock` works without it.

May import: `engine` and what lies below it, and PySpark (the extra `spark`).
"""

from penstock.spark.pipeline.file import load_pipeline as load_pipeline
from penstock.spark.pipeline.pipeline import Pipeline
from penstock.spark.source.data_source import PenstockDataSource, register

__all__ = ["PenstockDataSource", "Pipeline", "register"]
