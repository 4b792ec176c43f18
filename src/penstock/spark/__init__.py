"""The data pipeline on Spark: the data source `penstock` and `Pipeline`.

What lives here: everything that knows PySpark, and nothing else does: `import penstock` works without it.

May import: `engine` and what lies below it, and PySpark (the extra `spark`).
"""
