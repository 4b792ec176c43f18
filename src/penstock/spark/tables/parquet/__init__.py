"""Tables of Parquet files, in a directory on a file system or below a prefix in an object store.

Either way a block is staged first, where `read_table` does not see it, and one step makes it visible.
"""
