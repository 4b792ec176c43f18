"""The small fixed part of `python -m fuzz`; and that the fuzzer finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuzz.targets
from fuzz.corpus import BATCH, DECODED_PAYLOAD, EVENT, HEAD, LOG_OBJECT, MANIFEST, PAYLOAD, SEGMENT, corpus
from fuzz.mutations import make_input
from fuzz.runner import run
from fuzz.targets import TARGETS, WrongValue, change_manifest, read_batch, read_manifest
from penstock.buffer import Manifest, decode_batch, encode_batch
from penstock.buffer.manifest.v1.codec import OpenDataManifest
from penstock.errors import CorruptData
from tests.support import manifest_trailers
from tests.support.manifest_trailers import ended
from tests.support.repository import ROOT

PLANTED = "tests.buffer.format.planted_defects"
BATCH_FOOTERS = st.builds(lambda code, count: bytes([code, count, 0, 0, 0]), st.sampled_from([0, 1]), st.integers(0, 4))
MANIFEST_FOOTERS = st.builds(
    lambda count, following: bytes([count, 0, 0, 0, following, *bytes(15), 1, 0]), st.integers(0, 3), st.integers(0, 3)
)


def test_some_thousand_inputs_are_values_or_corrupt_data() -> None:
    report = run(seed=20_260_101, inputs=5_000, seconds=240)
    assert report.findings == [], "\n".join(report.lines())
    assert report.tried == 5_000
    for target in TARGETS:
        kinds = {outcome for outcome in report.outcomes if outcome.startswith(target.name)}
        assert f"{target.name}: value" in kinds
        assert len(kinds) >= {HEAD: 5, SEGMENT: 3}.get(target.kind, 6), "every decoder is reached, and far into it"


@given(st.binary(max_size=200), st.just(b"") | BATCH_FOOTERS)
def test_any_bytes_are_a_batch_or_corrupt_data(block: bytes, footer: bytes) -> None:
    for data in (block + footer, block + footer + b"\x01\x00", ended(block + footer, manifest_trailers.BATCH)):
        with suppress(CorruptData):
            read_batch(data)


@given(st.binary(max_size=200), st.just(b"") | MANIFEST_FOOTERS)
@pytest.mark.parametrize("call", [read_manifest, change_manifest])
def test_any_bytes_are_a_manifest_or_corrupt_data(call: Callable[[bytes], None], block: bytes, footer: bytes) -> None:
    with suppress(CorruptData):
        call(block + footer)


def test_every_sample_is_a_value_before_it_is_mutated() -> None:
    for sample in corpus():
        for target in TARGETS:
            if target.kind == sample.kind:
                target.call(sample.bytes())


def test_an_input_follows_from_its_seed_and_number_alone() -> None:
    first, second = corpus(), corpus()
    inputs = [make_input(first, 7, number) for number in range(300)]
    assert [make_input(second, 7, number) for number in reversed(range(300))] == inputs[::-1]
    assert len({each.data for each in inputs}) > 250
    kinds = {BATCH, MANIFEST, HEAD, SEGMENT, EVENT, LOG_OBJECT, PAYLOAD, DECODED_PAYLOAD}
    assert {each.kind for each in inputs} == kinds
    assert [make_input(first, 8, number) for number in range(300)] != inputs


def test_a_decoder_without_a_defect_has_no_finding() -> None:
    report = run(seed=3, inputs=1_500, targets=f"{PLANTED}:SOUND")
    assert report.findings == []
    assert set(report.outcomes) == {"sound: value", "sound: N bytes are too few"}


@pytest.mark.parametrize(
    ("planted", "inputs", "target", "what"),
    [
        ("UNPACKS", 3_000, "unpacks", "error in unpacks_what_is_not_there: unpack_from requires a buffer of at least"),
        pytest.param(
            "ALLOCATES",
            1_000,
            "allocates",
            "MemoryError in allocates_what_a_count_claims",
            marks=pytest.mark.slow,
        ),
        pytest.param("HIDES", 1_000, "hides", "memory beyond the cap", marks=pytest.mark.slow),
        ("HANGS", 1_000, "hangs", "a hang"),
        ("CRASHES", 1_000, "crashes", "a crash: the worker died of SIGSEGV"),
        ("IS_SILENT", 3_000, "is silent", "CorruptData that does not say what is wrong"),
    ],
)
def test_a_planted_defect_is_found_and_its_input_saved(
    planted: str, inputs: int, target: str, what: str, tmp_path: Path
) -> None:
    report = run(
        seed=1, inputs=inputs, alarm=1, memory=64 << 20, deaths=1, targets=f"{PLANTED}:{planted}", folder=tmp_path
    )
    (found,) = report.findings
    assert found.target == target
    assert found.what.startswith(what)
    assert list(tmp_path.iterdir()) == [found.file]
    assert found.file.read_bytes() == make_input(corpus(), 1, found.number).data
    assert report.tried > found.number
    assert any(line.startswith(f"FOUND by {target}, input {found.number} of seed 1: ") for line in report.lines())


def misread(data: bytes, max_batch_bytes: int = 1 << 30) -> pa.RecordBatch:
    return decode_batch(data, max_batch_bytes=max_batch_bytes).slice(1)


def test_a_batch_that_is_misread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read_batch(encode_batch([b"a", b"b"], format="opendata"))
    monkeypatch.setattr(fuzz.targets, "decode_batch", misread)
    for shape in ("arrow", "opendata"):
        with pytest.raises(WrongValue):
            read_batch(encode_batch([b"a", b"b"], format=shape))


def test_a_manifest_that_is_misread_or_miswritten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    data = OpenDataManifest.empty().append([("a", ()), ("b", ())]).data
    read_manifest(data)
    change_manifest(data)
    monkeypatch.setattr(Manifest, "decode", lambda data: Manifest(1, 0, 2, ()))
    with pytest.raises(WrongValue, match="one way only"):
        read_manifest(data)
    monkeypatch.setattr(OpenDataManifest, "remove_through", lambda self, through: OpenDataManifest.empty())
    with pytest.raises(WrongValue, match="gave sequences back"):
        change_manifest(data)


def test_the_command_ends_with_a_summary_and_status_0_where_nothing_was_found() -> None:
    command = [sys.executable, "-m", "fuzz", "--seed=1", "--inputs=50", "--seconds=30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("seed 1\n50 inputs from seed 1\n"), done.stderr
    assert done.returncode == 0
