"""Penstock: durable event pipelines for Spark, without a broker."""

from penstock.records import Record
from penstock.storage import ObjectStore, open_store

__version__ = "0.1.0"

__all__ = ["ObjectStore", "Record", "open_store"]
