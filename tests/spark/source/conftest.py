"""On Spark 3.5 there is no data source: only what its parts do by themselves is tried there."""

from __future__ import annotations

import pytest

from penstock.spark.versions import HAS_DATA_SOURCES


@pytest.fixture(scope="module", autouse=True)
def _with_data_sources(request: pytest.FixtureRequest) -> None:
    """A module that holds on every Spark says so, as `ANY_SPARK`."""
    if not HAS_DATA_SOURCES and not getattr(request.module, "ANY_SPARK", False):
        pytest.skip("Spark 3.5 has no data sources in Python")
