"""`ProducerConfig` and `ConsumerConfig`: their defaults, and every value that they refuse, by the name of the field."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest

from penstock.buffer import BatchFormat, Compression, ConsumerConfig, ManifestFormat, ProducerConfig
from penstock.errors import InvalidInput

MANIFESTS = ["native"]

Config = ProducerConfig | ConsumerConfig
Kind = type[ProducerConfig] | type[ConsumerConfig]

BOTH: tuple[Kind, ...] = (ProducerConfig, ConsumerConfig)
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
BAD_SECONDS = (0, -1, -0.001, math.nan, math.inf, -math.inf, True, "300", None)
BAD_NUMBERS = (0, -1, 1.5, "1", None, True)

REFUSED: dict[tuple[Kind, ...], dict[str, tuple[object, ...]]] = {
    BOTH: {
        "data_path_prefix": ("", None, 1, 5, b"ingest"),
        "manifest_path": (None, 1, 5, b"ingest/manifest"),
        "manifest_format": ("", "v1", "NATIVE", 1, None),
        "max_batch_bytes": (*BAD_NUMBERS, 1 << 31),
        "enqueue_deadline": BAD_SECONDS,
    },
    (ProducerConfig,): {
        "manifest_path": ("ingest/.owner", f"ingest/{ULID}.batch"),
        "flush_interval": (-1, -0.001, math.nan, math.inf, "1", None, True),
        "flush_size_bytes": BAD_NUMBERS,
        "max_buffered_inputs": BAD_NUMBERS,
        "max_buffered_bytes": BAD_NUMBERS,
        "compression": ("", "gzip", "ZSTD", 1, None),
        "format": ("", "parquet", "ARROW", 2),
    },
    (ConsumerConfig,): {
        # A thread waits for 292 years at most, and a date less 1e11 seconds is before the year 1.
        "gc_interval": (*BAD_SECONDS, 1e10),
        "gc_grace_period": (*BAD_SECONDS, 1e11),
        "gc": (0, 1, None, "yes"),
        "group": ("", "x" * 129, "a\nb", "a\x00b", b"mine", None, 1),
        "start": ("", "newest", "LATEST", "0", -1, True, 1.5, math.inf, None, b"latest"),
    },
}

ACCEPTED: dict[tuple[Kind, ...], dict[str, tuple[object, ...]]] = {
    BOTH: {
        "data_path_prefix": ("a/b c/ä",),
        "manifest_path": ("elsewhere/manifest",),
        "manifest_format": ("native", "opendata", ManifestFormat.OPENDATA),
        "max_batch_bytes": (1, (1 << 31) - 1),
    },
    (ProducerConfig,): {
        "flush_interval": (0, 0.0, 1, 0.001),
        "flush_size_bytes": (1, 1 << 40),
        "max_buffered_inputs": (1, 1 << 40),
        "max_buffered_bytes": (1, 1 << 40),
        "compression": ("none", "zstd", Compression.ZSTD),
        "format": ("arrow", "opendata", BatchFormat.OPENDATA, None),
        "enqueue_deadline": (0.001, 1, 1e9),
    },
    (ConsumerConfig,): {
        "group": ("default", "mine", "x" * 128, "Zürich, at night", "../x"),
        "start": ("earliest", "latest", 0, 17),
    },
}


def cases(table: dict[tuple[Kind, ...], dict[str, tuple[object, ...]]]) -> list[tuple[Kind, str, object]]:
    return [
        (kind, field, value)
        for kinds, fields in table.items()
        for kind in kinds
        for field, values in fields.items()
        for value in values
    ]


def make(kind: Kind, field: str, value: object) -> Config:
    values: dict[str, Any] = {field: value}
    return kind(**values)


def test_the_defaults_are_those_of_the_contract() -> None:
    shared = {
        "data_path_prefix": "ingest",
        "manifest_path": "ingest/manifest",
        "manifest_format": "native",
        "max_batch_bytes": 1 << 30,
        "enqueue_deadline": 300.0,
    }
    assert asdict(ProducerConfig()) == shared | {
        "flush_interval": 0.1,
        "flush_size_bytes": 64 << 20,
        "max_buffered_inputs": 1_000_000,
        "max_buffered_bytes": 256 << 20,
        "compression": "none",
        "format": None,
    }
    assert asdict(ConsumerConfig()) == shared | {
        "gc_interval": 300.0,
        "gc_grace_period": 600.0,
        "gc": True,
        "group": "default",
        "start": "earliest",
        "gc_at_close": 5.0,
    }


@pytest.mark.parametrize(("kind", "field", "value"), cases(REFUSED))
def test_a_bad_value_is_refused_by_the_name_of_its_field(kind: Kind, field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field} ") as refused:
        make(kind, field, value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("kind", "field", "value"), cases(ACCEPTED))
def test_a_value_within_bounds_is_kept(kind: Kind, field: str, value: object) -> None:
    assert getattr(make(kind, field, value), field) == value


@pytest.mark.parametrize("path", ["../x", "/x", "x//y", "x/./y", "x/../y", "x\\y", "x\ny", "x\0", "."])
@pytest.mark.parametrize("field", ["manifest_path", "data_path_prefix"])
@pytest.mark.parametrize("kind", BOTH)
def test_a_path_that_leaves_the_store_is_refused(kind: Kind, field: str, path: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field}: ") as refused:
        make(kind, field, path)
    assert repr(path) in str(refused.value)


@pytest.mark.parametrize("kind", BOTH)
def test_a_path_that_names_no_object_is_refused(kind: Kind) -> None:
    with pytest.raises(InvalidInput, match=r"^manifest_path: .*it is empty"):
        make(kind, "manifest_path", "")
    with pytest.raises(InvalidInput, match=r"^manifest_path: .*'dir/'"):
        make(kind, "manifest_path", "dir/")
    with pytest.raises(InvalidInput, match=r"^data_path_prefix: .*'/'"):
        make(kind, "data_path_prefix", "/")


@pytest.mark.parametrize("name", [".owner", f"{ULID}.batch"])
def test_a_manifest_where_the_data_needs_the_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^manifest_path 'events/{name}' .*data_path_prefix 'events'"):
        ConsumerConfig(manifest_path=f"events/{name}", data_path_prefix="events")


@pytest.mark.parametrize("path", ["other/.owner", "events/deeper/.owner", "events/x.batch", "manifest"])
def test_a_manifest_elsewhere_may_have_any_name(path: str) -> None:
    assert ConsumerConfig(manifest_path=path, data_path_prefix="events").manifest_path == path


@pytest.mark.parametrize("kind", BOTH)
def test_a_configuration_cannot_be_changed_and_equals_another_of_the_same_values(kind: Kind) -> None:
    config = kind(data_path_prefix="events/raw/")
    assert config.data_path_prefix == "events/raw"
    assert config == kind(data_path_prefix="events/raw")
    with pytest.raises(FrozenInstanceError):
        config.enqueue_deadline = 1.0  # type: ignore[misc]


def test_plain_words_become_the_enumerations() -> None:
    config = ProducerConfig(compression="zstd", format="opendata", manifest_format="opendata")
    chosen = (config.compression, config.format, config.manifest_format)
    assert [type(word) for word in chosen] == [Compression, BatchFormat, ManifestFormat]
    assert ConsumerConfig(manifest_format="native").manifest_format is ManifestFormat.NATIVE


@pytest.mark.parametrize("gc", [True, False])  # an operator may run a collector by hand with the same configuration
@pytest.mark.parametrize(("grace", "deadline"), [(599.9, 300.0), (600.0, 300.1), (1.0, 300.0), (0.9, 0.5)])
def test_a_grace_period_below_twice_the_deadline_is_refused_by_naming_both(
    grace: float, deadline: float, gc: bool
) -> None:
    with pytest.raises(InvalidInput, match=rf"^gc_grace_period .*{deadline}.*{grace}$"):
        ConsumerConfig(gc_grace_period=grace, enqueue_deadline=deadline, gc=gc)


@pytest.mark.parametrize(("grace", "deadline"), [(600.0, 300.0), (600, 300), (0.2, 0.1), (1e6, 300.0)])
def test_a_grace_period_of_twice_the_deadline_is_enough(grace: float, deadline: float) -> None:
    assert ConsumerConfig(gc_grace_period=grace, enqueue_deadline=deadline).gc_grace_period == grace
