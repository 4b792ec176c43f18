"""The data pipeline on Spark: the data source `penstock` and `Pipeline`.

What lives here: everything that knows PySpark, and nothing else does: `import penstock` works without it.

May import: `engine` and what lies below it, and PySpark (the extra `spark`).
"""

from penstock.spark.data_source import PenstockDataSource, register
from penstock.spark.pipeline import Pipeline

__all__ = ["PenstockDataSource", "Pipeline", "register"]
