"""Decoders with a defect that a fuzzer has to find, and one without."""

from __future__ import annotations

import os
import signal
import struct

from fuzz.corpus import BATCH, MANIFEST
from fuzz.targets import Target
from penstock.errors import CorruptData


def sound(data: bytes) -> None:
    if len(data) < 7:
        raise CorruptData(f"{len(data)} bytes are too few")


def unpacks_what_is_not_there(data: bytes) -> None:
    struct.unpack_from("<BIH", data, max(len(data) - 7, 0))


def allocates_what_a_count_claims(data: bytes) -> None:
    sound(data)
    bytearray(int.from_bytes(data[-6:-2], "little"))


def hides_that_it_allocates(data: bytes) -> None:
    try:
        allocates_what_a_count_claims(data)
    except MemoryError as error:
        raise CorruptData("something is wrong") from error


def hangs_on_a_version(data: bytes) -> None:
    while data[-2:] not in {b"\x01\x00", b"TB"}:
        pass


def crashes_on_a_version(data: bytes) -> None:
    if data[-2:] not in {b"\x01\x00", b"TB"}:
        os.kill(os.getpid(), signal.SIGSEGV)


def does_not_say_what_is_wrong(data: bytes) -> None:
    if len(data) < 7:
        raise CorruptData


SOUND = (Target("sound", BATCH, sound),)
UNPACKS = (Target("sound", MANIFEST, sound), Target("unpacks", BATCH, unpacks_what_is_not_there))
ALLOCATES = (Target("allocates", BATCH, allocates_what_a_count_claims),)
HIDES = (Target("hides", BATCH, hides_that_it_allocates),)
HANGS = (Target("sound", BATCH, sound), Target("hangs", BATCH, hangs_on_a_version))
CRASHES = (Target("sound", BATCH, sound), Target("crashes", BATCH, crashes_on_a_version))
IS_SILENT = (Target("is silent", BATCH, does_not_say_what_is_wrong),)
