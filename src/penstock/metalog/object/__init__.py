"""The metadata log on an object store."""
