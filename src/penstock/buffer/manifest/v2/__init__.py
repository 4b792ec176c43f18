"""Version 2 of the manifest: a small head, with sealed segments of entries beside it."""
