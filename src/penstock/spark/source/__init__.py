"""Spark's data source `penstock`: reads, streams and writes."""
