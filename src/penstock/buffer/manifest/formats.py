"""Which state the bytes of a manifest are: each version has its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from penstock.buffer.config import ManifestFormat
from penstock.buffer.manifest.state import Limits, QueueState
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.buffer.manifest.v1.state import OpenDataState
from penstock.buffer.manifest.v2.head import VERSION as NATIVE
from penstock.buffer.manifest.v2.head import decode_head, unborn_head, version_of
from penstock.buffer.manifest.v2.state import NativeState


@dataclass(frozen=True, slots=True)
class Formats:
    """The implementations of both versions, and the limits of version 2."""

    opendata: type[OpenDataState] = OpenDataState
    native: type[NativeState] = NativeState
    limits: Limits = field(default_factory=Limits)

    def decode(self, data: bytes, where: str) -> QueueState:
        """Read the bytes of a manifest of either version. Raises `CorruptData` naming what is wrong."""
        if version_of(data) == NATIVE:
            return self.native(decode_head(data), where, self.limits)
        return self.opendata(OpenDataManifest(data), where)

    def new(self, manifest_format: str, buffer_id: UUID, where: str) -> QueueState:
        """The state of a buffer that is not there yet: an empty queue at epoch 0."""
        if manifest_format == ManifestFormat.NATIVE:
            return self.native(unborn_head(buffer_id), where, self.limits)
        return self.opendata(OpenDataManifest.empty(), where)
