"""How a forked child ends that has RocksDB in it."""

from __future__ import annotations

import ctypes
import os
import sys


def _end_without_rocksdb() -> None:
    """Let a forked child end without RocksDB's exit handler, which joins threads that the child has not.

    That would crash the child, or never return. Handlers run in the reverse order of their registration: this one runs
    first, after Python has ended its own affairs, and ends the process with the status that it has.
    """
    libc = ctypes.CDLL(None)
    if "rocksdict" in sys.modules and hasattr(libc, "on_exit"):  # glibc has it
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


os.register_at_fork(after_in_child=_end_without_rocksdb)
