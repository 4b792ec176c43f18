"""The native manifest, version 2."""
