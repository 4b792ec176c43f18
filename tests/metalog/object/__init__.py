"""The log on an object store: its bytes, its writers, its readers, and what a store can do to them."""
