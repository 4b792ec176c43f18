"""Delta tables without the JVM's jars: executors write Parquet files with Arrow, the driver commits them by delta-rs.

`table.open_delta` opens one. Only the driver needs the package `deltalake`, in `log`, `merge` and `maintenance`.
"""
