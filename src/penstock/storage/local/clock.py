"""The store's clock: strictly increasing, shared by all its processes, and deaf to leaps of the host's clock."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable
from io import FileIO

from penstock.core import uptime_ns
from penstock.storage.local.internal_directory import InternalDirectory
from penstock.storage.local.lock import locked
from penstock.storage.local.permissions import DEFAULT_PERMISSIONS

_STATE = struct.Struct("<16sqq")  # which boot, nanoseconds since it, the last stamp in microseconds
_CHECK = struct.Struct("<I")


def boot_id() -> bytes:
    """16 bytes that change with every boot of this host; the same ones always where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return bytes.fromhex(source.read().strip().replace("-", ""))
    except OSError:
        return bytes(16)


class StoreClock:
    """Stamps in microseconds that follow the host's clock, but at most at twice the speed of real time.

    Twice, because the garbage collector, which compares two stamps, allows for at least that much. While the host's
    clock is behind, because it was ahead before, they go on at half the speed, so that the host's catches up. After a
    reboot the host's time counts as it is.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], int] = uptime_ns,
        boot: Callable[[], bytes] = boot_id,
        mode: int = DEFAULT_PERMISSIONS.file_mode,
    ) -> None:
        self._internal, self._name = os.path.split(path)
        self._mode = mode
        self._clock = clock
        self._uptime = uptime
        self._boot = boot()

    def next_stamp(self) -> int:
        """Return a stamp above every one given out before, by any process."""
        internal = InternalDirectory(self._internal)
        try:
            with locked(internal, self._name, FileIO, self._mode) as file:
                stamp = self._next(file.fileno())
        finally:
            os.close(internal.descriptor)
        return stamp

    def _next(self, descriptor: int) -> int:
        last = _read(descriptor)
        host, up = int(self._clock() * 1_000_000), self._uptime()
        if last is None:
            stamp = host
        elif last[0] != self._boot or up < last[1]:
            stamp = max(host, last[2] + 1)
        elif host <= last[2]:
            # It was ahead once. If the store's clock stood still, nothing would grow old until the host's is there.
            stamp = last[2] + max((up - last[1]) // 2_000, 1)
        else:
            most = last[2] + 2 * (up - last[1]) // 1_000
            stamp = max(min(host, most), last[2] + 1)
        _write(descriptor, self._boot, up, stamp)
        return stamp


def _read(descriptor: int) -> tuple[bytes, int, int] | None:
    content = os.pread(descriptor, _STATE.size + _CHECK.size, 0)
    if len(content) != _STATE.size + _CHECK.size:
        return None
    state = content[: _STATE.size]
    if _CHECK.unpack(content[_STATE.size :]) != (zlib.crc32(state),):
        return None
    boot, up, stamp = _STATE.unpack(state)
    return boot, up, stamp


def _write(descriptor: int, boot: bytes, up: int, stamp: int) -> None:
    state = _STATE.pack(boot, up, stamp)
    os.pwrite(descriptor, state + _CHECK.pack(zlib.crc32(state)), 0)
