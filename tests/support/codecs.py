"""Codecs that count their calls, or that fail."""

from __future__ import annotations

from collections.abc import Callable


class CountingCodec:
    """Text; it counts its calls."""

    def __init__(self) -> None:
        self.encoded = 0
        self.decoded = 0

    def encode(self, event: str, /) -> bytes:
        self.encoded += 1
        return event.encode()

    def decode(self, data: bytes, /) -> str:
        self.decoded += 1
        return data.decode()


class RefusingCodec:
    """Bytes, but for those that begin with "bad": they raise an error."""

    def __init__(self, error: Callable[[], BaseException] = lambda: RuntimeError("no such thing")) -> None:
        self.refuses = True
        self._error = error

    def encode(self, event: bytes, /) -> bytes:
        return event

    def decode(self, data: bytes, /) -> bytes:
        if self.refuses and data.startswith(b"bad"):
            raise self._error()
        return data


class StrictCodec(RefusingCodec):
    """Refuses such bytes when they are pushed."""

    def encode(self, event: bytes, /) -> bytes:
        return self.decode(event)
