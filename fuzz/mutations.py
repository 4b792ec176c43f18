"""An input from a seed and a number: a sample with some bytes turned, cut, spliced, or a length that lies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from fuzz.corpus import BATCH, MANIFEST, Field, Sample, pack

CAP = 16 << 20
"""`max_batch_bytes` for all inputs."""

_NUMBERS = (0, 1, 2, 3, 7, 255, 256, 300, 301, 65_535, 65_536, CAP, CAP + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_HUGE = (1 << 40, (1 << 62) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_ZSTD_FIELDS: tuple[Field, ...] = tuple((at, width) for at in (4, 5, 6, 7, 9, 14) for width in (1, 2, 3, 4, 8))


_PLAIN = ["block"] * 17 + ["footer"] * 2 + ["both"]
_WHERE = {False: _PLAIN, True: [*_PLAIN, *["frame"] * 12, "bomb"]}


@cache
def _bombs() -> tuple[bytes, ...]:
    """Frames that are small, and would unpack to much, or say that they do."""
    run = bytes.fromhex("020010 00")  # 128 KiB of one byte, in a block that is not the last
    return (
        pack(bytes(1 << 20)),
        pack(bytes(CAP + 1)),
        pack(b"\xff" * CAP),
        bytes.fromhex("28b52ffd 00 38") + run * 256 + bytes.fromhex("010000"),
        bytes.fromhex("28b52ffd 00 38") + run * 8192 + bytes.fromhex("010000"),
        bytes.fromhex("28b52ffd a0 00000001 430000 00"),
        bytes.fromhex("28b52ffd 00 88 010000"),
        bytes.fromhex("28b52ffd 00 68") + bytes(9_000) + bytes.fromhex("010000"),
    )


@dataclass(frozen=True, slots=True)
class Input:
    """Bytes, and whether they go to what reads batches or to what reads manifests."""

    kind: str
    data: bytes


def make_input(samples: Sequence[Sample], seed: int, number: int) -> Input:
    """The input of this number. It depends on nothing else, so it can be made again."""
    chance = random.Random(f"{seed}/{number}")
    sample = chance.choice(samples)
    data = _mutated(chance, sample, samples)
    if chance.random() < 0.03:
        return Input(chance.choice([BATCH, MANIFEST]), data)
    return Input(sample.kind, data)


def _mutated(chance: random.Random, sample: Sample, samples: Sequence[Sample]) -> bytes:
    other = chance.choice([each for each in samples if each.kind == sample.kind])
    block, footer = sample.block, sample.footer
    where = chance.choice(_WHERE[sample.packed])
    if where in {"block", "both"}:
        block = _several(chance, block, sample.block_fields, other.block)
    if where in {"footer", "both"}:
        footer = _several(chance, footer, sample.footer_fields, other.footer)
    if sample.packed:
        block = chance.choice(_bombs()) if where == "bomb" else pack(block)
        if where == "frame":
            block = _several(chance, block, _ZSTD_FIELDS, pack(other.block))
    whole = sample.ended(block + footer)
    # Mostly the checksum is right, so that what is behind it is reached; and sometimes it is not.
    return _several(chance, whole, (), other.bytes()) if sample.magic and chance.random() < 0.05 else whole


def _several(chance: random.Random, data: bytes, fields: Sequence[Field], other: bytes) -> bytes:
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3, 8])):
        if fields and chance.random() < 0.4:
            data = _lie(chance, data, chance.choice(fields))
        else:
            data = chance.choice(_MUTATIONS)(chance, data, other)
    return data


def _lie(chance: random.Random, data: bytes, field: Field) -> bytes:
    """Another number where a number is: near to what it was, near to what there is, or far off."""
    at, width = field
    if at + width > len(data):
        return data
    number = int.from_bytes(data[at : at + width], "little")
    lie = chance.choice(
        [
            number + chance.randint(-9, 9),
            number ^ 1 << chance.randrange(8 * width),
            len(data) - at + chance.randint(-9, 9),
            chance.choice(_NUMBERS),
            chance.choice(_HUGE),
            chance.getrandbits(8 * width),
        ]
    )
    return data[:at] + (lie % (1 << 8 * width)).to_bytes(width, "little") + data[at + width :]


def _flip(chance: random.Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _overwrite(chance: random.Random, data: bytes, _: bytes) -> bytes:
    at, size = _place(chance, data), chance.randint(1, 9)
    new = chance.choice([bytes(size), b"\xff" * size, chance.randbytes(size)])
    return data[:at] + new + data[at + size :]


def _insert(chance: random.Random, data: bytes, _: bytes) -> bytes:
    at = _place(chance, data)
    return data[:at] + chance.randbytes(chance.randint(1, 9)) + data[at:]


def _truncate(chance: random.Random, data: bytes, _: bytes) -> bytes:
    at = _place(chance, data)
    return chance.choice([data[:at], data[:at], data[at:], data[: -chance.randint(1, 9)]])


def _cut(chance: random.Random, data: bytes, _: bytes) -> bytes:
    start, end = sorted((_place(chance, data), _place(chance, data)))
    return data[:start] + data[end:]


def _repeat(chance: random.Random, data: bytes, _: bytes) -> bytes:
    start, end = sorted((_place(chance, data), _place(chance, data)))
    return data[:end] + data[start:end] + data[end:]


def _splice(chance: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: _place(chance, data)] + other[_place(chance, other) :]


def _place(chance: random.Random, data: bytes) -> int:
    """Any place, and often one where something begins."""
    place = chance.randint(0, len(data))
    return place - place % chance.choice([1, 4, 8])


_MUTATIONS: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    _flip,
    _flip,
    _overwrite,
    _insert,
    _truncate,
    _cut,
    _repeat,
    _splice,
)
