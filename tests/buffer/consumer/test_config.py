"""`ConsumerConfig`: its defaults, and every value that it refuses, by the name of the field."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict
from typing import Any

import pytest

from penstock.buffer import ConsumerConfig, ManifestFormat
from penstock.errors import InvalidInput

MANIFESTS = ["native"]

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NO_SECONDS = [0, -1, -0.001, math.nan, math.inf, -math.inf, True, "300", None]


def test_the_defaults_are_those_of_the_contract() -> None:
    assert asdict(ConsumerConfig()) == {
        "manifest_path": "ingest/manifest",
        "data_path_prefix": "ingest",
        "gc_interval": 300.0,
        "gc_grace_period": 600.0,
        "gc": True,
        "group": "default",
        "start": "earliest",
        "manifest_format": "native",
        "max_batch_bytes": 1 << 30,
        "enqueue_deadline": 300.0,
        "gc_at_close": 5.0,
    }


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ConsumerConfig().gc_interval = 1.0  # type: ignore[misc]


def test_configurations_of_the_same_values_are_equal() -> None:
    assert ConsumerConfig(gc=False) == ConsumerConfig(gc=False, data_path_prefix="ingest/")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(field, value) for field in ("gc_interval", "gc_grace_period", "enqueue_deadline") for value in NO_SECONDS],
        *[("gc", value) for value in (0, 1, None, "yes")],
        *[("max_batch_bytes", value) for value in (0, -1, 1.5, True, "1", None, 1 << 31)],
        *[("manifest_format", value) for value in ("", "v1", "NATIVE", None, 1)],
        *[("group", value) for value in ("", "x" * 129, "a\nb", "a\x00b", b"mine", None, 1)],
        *[("start", value) for value in ("", "newest", "LATEST", "0", -1, True, 1.5, math.inf, None, b"latest")],
        *[("data_path_prefix", value) for value in ("", None, 1, b"ingest")],
        *[("manifest_path", value) for value in (None, 1, b"ingest/manifest")],
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    values: dict[str, Any] = {field: value}
    with pytest.raises(InvalidInput, match=rf"^{field} ") as refused:
        ConsumerConfig(**values)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("path", ["../x", "/x", "x//y", "x/../y", "x\\y", "x\ny", "."])
@pytest.mark.parametrize("field", ["manifest_path", "data_path_prefix"])
def test_a_path_that_leaves_the_store_is_refused(field: str, path: str) -> None:
    values: dict[str, Any] = {field: path}
    with pytest.raises(InvalidInput, match=rf"^{field}: ") as refused:
        ConsumerConfig(**values)
    assert repr(path) in str(refused.value)


def test_an_empty_manifest_path_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^manifest_path: .*it is empty"):
        ConsumerConfig(manifest_path="")


@pytest.mark.parametrize("name", [".owner", f"{ULID}.batch"])
def test_a_manifest_where_the_data_needs_the_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^manifest_path 'events/{name}' .*data_path_prefix 'events'"):
        ConsumerConfig(manifest_path=f"events/{name}", data_path_prefix="events")


@pytest.mark.parametrize("path", ["other/.owner", "events/deeper/.owner", "events/x.batch", "manifest"])
def test_a_manifest_elsewhere_may_have_any_name(path: str) -> None:
    assert ConsumerConfig(manifest_path=path, data_path_prefix="events").manifest_path == path


def test_a_trailing_slash_of_the_prefix_is_removed() -> None:
    assert ConsumerConfig(data_path_prefix="events/raw/").data_path_prefix == "events/raw"


@pytest.mark.parametrize("word", ["native", "opendata"])
def test_a_manifest_format_is_a_plain_word_or_a_name(word: str) -> None:
    assert ConsumerConfig(manifest_format=word).manifest_format is ManifestFormat(word)


@pytest.mark.parametrize("group", ["default", "mine", "x" * 128, "Zürich, at night", "../x"])
def test_a_group_may_have_any_name_that_can_be_printed(group: str) -> None:
    assert ConsumerConfig(group=group).group == group


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 17])
def test_a_group_begins_at_an_end_or_a_sequence(start: str | int) -> None:
    assert ConsumerConfig(start=start).start == start


@pytest.mark.parametrize(("grace", "deadline"), [(599.9, 300.0), (600.0, 300.1), (1.0, 300.0), (0.9, 0.5)])
def test_a_grace_period_below_twice_the_deadline_is_refused_by_naming_both(grace: float, deadline: float) -> None:
    with pytest.raises(InvalidInput, match=rf"^gc_grace_period .*{deadline}.*{grace}$"):
        ConsumerConfig(gc_grace_period=grace, enqueue_deadline=deadline)


@pytest.mark.parametrize(("grace", "deadline"), [(600.0, 300.0), (600, 300), (0.2, 0.1), (1e6, 300.0)])
def test_a_grace_period_of_twice_the_deadline_is_enough(grace: float, deadline: float) -> None:
    assert ConsumerConfig(gc_grace_period=grace, enqueue_deadline=deadline).gc_grace_period == grace


def test_a_grace_period_is_checked_though_no_collector_runs_here() -> None:
    # An operator may run one by hand with the same configuration.
    with pytest.raises(InvalidInput, match=r"^gc_grace_period "):
        ConsumerConfig(gc=False, gc_grace_period=1.0)


@pytest.mark.parametrize("most", [1, (1 << 31) - 1])
def test_the_ends_of_max_batch_bytes_are_allowed(most: int) -> None:
    assert ConsumerConfig(max_batch_bytes=most).max_batch_bytes == most


def test_an_interval_that_no_thread_can_wait_for_is_refused() -> None:
    # `threading.TIMEOUT_MAX` is 292 years: beyond it a wait raises OverflowError, and the collector's thread would end.
    with pytest.raises(InvalidInput, match=r"^gc_interval "):
        ConsumerConfig(gc_interval=1e10)


def test_a_grace_period_that_no_date_can_go_back_by_is_refused() -> None:
    # A date minus 1e11 seconds is before the year 1: every cycle of the collector would break.
    with pytest.raises(InvalidInput, match=r"^gc_grace_period "):
        ConsumerConfig(gc_grace_period=1e11)
