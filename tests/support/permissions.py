"""Permissions hold for root too, for a while: tests may run as root, which may do everything."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522  # of Linux' structures of capabilities: two words of 32 bits for each set
_GO_PAST_PERMISSIONS = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """In this thread, and in threads that it starts, the modes of files count."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper halves
    assert libc.capget(header, words) == 0, os.strerror(ctypes.get_errno())
    effective = words[0]
    words[0] = effective & ~_GO_PAST_PERMISSIONS
    assert libc.capset(header, words) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        words[0] = effective
        assert libc.capset(header, words) == 0, os.strerror(ctypes.get_errno())
