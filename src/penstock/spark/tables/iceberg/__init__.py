"""Tables in the format of Apache Iceberg, written without JVM jars: `open_iceberg` in `table` opens one.

Everything else here imports pyiceberg, which is there with the extra `iceberg`.
"""
