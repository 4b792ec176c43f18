"""The awaitable twins of producers and consumers."""
