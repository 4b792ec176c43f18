"""Returning unused memory to the kernel."""

from __future__ import annotations

import ctypes

import pyarrow as pa


def release_unused_memory() -> None:
    """Have the allocators return the memory that they keep unused: the kernel counts it as used, so it is pressure."""
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # only glibc has it
