"""`ProducerConfig` refuses what cannot be right, and says which field it was."""

from __future__ import annotations

import dataclasses
import math

import pytest

from penstock import ProducerConfig
from penstock.buffer import BatchFormat, Compression, ManifestFormat
from penstock.errors import InvalidInput

MANIFESTS = ["native"]

REFUSED: list[tuple[str, object]] = [
    *(("data_path_prefix", bad) for bad in ("", "/", "/abs", "../up", "a//b", "a/./b", "a\0", 5, None)),
    *(("manifest_path", bad) for bad in ("", "/abs", "../up", "a//b", "dir/", "a\0", 5, None)),
    *(("manifest_path", bad) for bad in ("ingest/.owner", "ingest/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch")),
    *(("flush_interval", bad) for bad in (-1, -0.001, math.nan, math.inf, "1", None, True)),
    *(("flush_size_bytes", bad) for bad in (0, -1, 1.5, "1", None, True)),
    *(("max_buffered_inputs", bad) for bad in (0, -1, 1.5, "1", None, True)),
    *(("max_buffered_bytes", bad) for bad in (0, -1, 1.5, "1", None, True)),
    *(("compression", bad) for bad in ("", "gzip", "ZSTD", 1, None)),
    *(("format", bad) for bad in ("", "parquet", "ARROW", 2)),
    *(("manifest_format", bad) for bad in ("", "v1", "NATIVE", 1, None)),
    *(("max_batch_bytes", bad) for bad in (0, -1, 1 << 31, 1.5, "1", None, True)),
    *(("enqueue_deadline", bad) for bad in (0, -1, math.nan, math.inf, "1", None, True)),
]

ACCEPTED: list[tuple[str, object]] = [
    ("data_path_prefix", "a/b c/ä"),
    ("manifest_path", "elsewhere/manifest"),
    *(("flush_interval", good) for good in (0, 0.0, 1, 0.001)),
    *(("flush_size_bytes", good) for good in (1, 1 << 40)),
    *(("max_buffered_inputs", good) for good in (1, 1 << 40)),
    *(("max_buffered_bytes", good) for good in (1, 1 << 40)),
    *(("compression", good) for good in ("none", "zstd", Compression.ZSTD)),
    *(("format", good) for good in ("arrow", "opendata", BatchFormat.OPENDATA, None)),
    *(("manifest_format", good) for good in ("native", "opendata", ManifestFormat.OPENDATA)),
    *(("max_batch_bytes", good) for good in (1, (1 << 31) - 1)),
    *(("enqueue_deadline", good) for good in (0.001, 1, 1e9)),
]


def test_the_defaults_are_those_of_the_contract() -> None:
    assert dataclasses.asdict(ProducerConfig()) == {
        "data_path_prefix": "ingest",
        "manifest_path": "ingest/manifest",
        "flush_interval": 0.1,
        "flush_size_bytes": 64 << 20,
        "max_buffered_inputs": 1_000_000,
        "max_buffered_bytes": 256 << 20,
        "compression": "none",
        "format": None,
        "manifest_format": "native",
        "max_batch_bytes": 1 << 30,
        "enqueue_deadline": 300,
    }


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_value_that_cannot_be_right_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        ProducerConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_what_is_refused_is_named_with_its_field_and_its_value(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        ProducerConfig(**{field: value})  # type: ignore[arg-type]
    assert field in str(refused.value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_a_value_within_bounds_is_kept(field: str, value: object) -> None:
    assert getattr(ProducerConfig(**{field: value}), field) == value  # type: ignore[arg-type]


def test_plain_words_become_the_enumerations() -> None:
    config = ProducerConfig(compression="zstd", format="opendata", manifest_format="opendata")
    chosen = (config.compression, config.format, config.manifest_format)
    assert [type(word) for word in chosen] == [Compression, BatchFormat, ManifestFormat]


def test_a_prefix_may_end_with_a_slash() -> None:
    assert ProducerConfig(data_path_prefix="data/").data_path_prefix == "data"


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ProducerConfig().flush_interval = 1.0  # type: ignore[misc]
