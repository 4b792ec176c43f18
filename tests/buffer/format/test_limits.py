"""What reading a batch may take of time and memory, in a child that is ended where it takes more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.buffer import BatchFormat


def in_a_child(code: str) -> str:
    """What a Python of its own prints. Arrow allocates through the system there: other pools take more ahead."""
    env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", LIMITED + code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


LIMITED = """
import resource
import pyarrow as pa
import pyarrow.parquet
from penstock.buffer import decode_batch, encode_batch
from penstock.buffer.format.trailer import trailer

def ours(body):
    return body + trailer(body, 2, b"PSTB")

def memory(more):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, -1))

def outcome(data, most=1 << 30):
    try:
        return f"{decode_batch(data, max_batch_bytes=most).num_rows} rows"
    except MemoryError:
        return "MemoryError"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

for shape in ("arrow", "opendata"):
    outcome(encode_batch([b"warm"] * 400, compression="zstd", format=shape))
"""


@pytest.mark.parametrize("shape", BatchFormat)
def test_too_little_memory_to_unpack_is_not_mistaken_for_corrupt_data(shape: BatchFormat) -> None:
    output = in_a_child(f"""
data = encode_batch([bytes(1_000)] * 64_000, compression="zstd", format="{shape}")
memory(24 << 20)
print(outcome(data))
""")
    assert output == "MemoryError"


def test_too_little_memory_for_many_records_is_not_mistaken_for_corrupt_data() -> None:
    output = in_a_child("""
data = encode_batch([bytes(1_000)] * 64_000, format="opendata")
memory(100 << 20)  # once more what it has, and not twice
print(outcome(data))
""")
    assert output == "MemoryError"


def test_too_little_memory_to_join_record_batches_is_not_mistaken_for_corrupt_data() -> None:
    output = in_a_child("""
batch = pa.record_batch({"value": pa.array([bytes(1_000)] * 32_000, pa.binary())})
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, batch.schema) as writer:
    writer.write_batch(batch)
    writer.write_batch(batch)
data = ours(sink.getvalue().to_pybytes() + bytes.fromhex("00 00fa0000"))
print(outcome(data))
memory(24 << 20)
print(outcome(data))
""")
    assert output.splitlines() == ["64000 rows", "MemoryError"]


@pytest.mark.parametrize(
    ("last", "count"),
    [
        pytest.param("00000000", "ffffffff", id="too many"),
        pytest.param("00000000", "ffffff01", id="too few", marks=pytest.mark.slow),
        pytest.param("01000000", "00000002", id="the last one is cut", marks=pytest.mark.slow),
    ],
)
def test_a_small_object_of_very_many_records_is_refused_in_seconds_and_not_in_minutes(last: str, count: str) -> None:
    """4 KiB that unpack to 32 Mi empty records. Walking over so many in Python takes longer than the child may."""
    output = in_a_child(f"""
packed = pa.compress(bytes((128 << 20) - 4) + bytes.fromhex("{last}"), codec="zstd", asbytes=True)
resource.setrlimit(resource.RLIMIT_CPU, (8, 8))
print(outcome(packed + bytes.fromhex("01 {count} 0100")))
""")
    assert output.startswith("CorruptData: ")


@pytest.mark.parametrize("ending", ["lambda body: body + b'\\x01\\x00'", "ours"], ids=["opendata", "arrow"])
def test_a_bomb_takes_no_more_memory_than_the_limit(ending: str) -> None:
    """256 MiB of zeros in frames that say so, and in frames that do not."""
    output = in_a_child(f"""
sized = pa.compress(bytes(256 << 20), codec="zstd", asbytes=True)
run = bytes.fromhex("020010 00")  # 128 KiB of one byte; not the last block
unsized = bytes.fromhex("28b52ffd 00 38") + run * 2048 + bytes.fromhex("010000")
memory(48 << 20)
ended = {ending}
for frame in (sized, unsized):
    print(outcome(ended(frame + bytes.fromhex("01 01000000")), most=16 << 20).replace("CorruptData: ", ""))
""")
    assert output.splitlines() == [
        "the block would decompress to 268435456 bytes, beyond max_batch_bytes = 16777216",
        "the block would decompress beyond max_batch_bytes = 16777216",
    ]


@pytest.mark.parametrize(
    "frame",
    [
        "e0 0000002000000000 310000 020000006869",  # single segment: 512 MiB, in a block of 6 bytes
        "80 38 00000020 310000 020000006869",  # a window of 128 KiB, and 512 MiB
    ],
)
def test_nothing_is_allocated_for_a_size_that_is_only_claimed(frame: str) -> None:
    output = in_a_child(f"""
memory(48 << 20)
print(outcome(bytes.fromhex("28b52ffd {frame} 01 01000000 0100")))
""")
    assert output == "CorruptData: the zstd frame claims 536870912 bytes, and its blocks hold 6 at most"


def test_nothing_is_allocated_for_a_compressed_buffer_that_claims_a_tebibyte() -> None:
    output = in_a_child("""
sink = pa.BufferOutputStream()
batch = pa.record_batch({"value": pa.array([bytes(10_000)], pa.binary())})
with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
    writer.write_batch(batch)
honest, frame = (10_000).to_bytes(8, "little"), bytes.fromhex("28b52ffd")
block = sink.getvalue().to_pybytes().replace(honest + frame, (1 << 40).to_bytes(8, "little") + frame)
memory(48 << 20)
print(outcome(ours(block + bytes.fromhex("00 01000000"))))
""")
    assert output == "CorruptData: the Arrow IPC stream has compressed buffers"
