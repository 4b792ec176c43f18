"""An option that is misspelt: the error names the one that was meant, and the store's options still work."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.spark.source.options import ReadOptions
from penstock.spark.source.writing import BufferWriter
from tests.support.backlogs import Backlog, backlog_rows


@pytest.mark.parametrize("where", ["memory://a", "/tmp/buffer", "s3://bucket/events"])
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("maxBytesPerTriger", "maxBytesPerTrigger"),
        ("MAXBYTESPERTRIGGERS", "maxBytesPerTrigger"),
        ("max_bytes_per_trigger", "maxBytesPerTrigger"),
        ("onErrors", "onError"),
        ("groups", "group"),
        ("startSequence", "startingSequence"),
    ],
)
def test_a_read_names_the_option_that_was_meant(where: str, given: str, meant: str) -> None:
    options = ReadOptions.of({"path": where, given: "1"})

    with pytest.raises(InvalidInput, match=f"unknown option '{given.lower()}': is '{meant}' meant"):
        _ = options.store


@pytest.mark.parametrize("where", ["memory://a", "/tmp/buffer", "s3://bucket/events"])
@pytest.mark.parametrize(("given", "meant"), [("targetBatchByte", "targetBatchBytes"), ("compresion", "compression")])
def test_a_write_names_the_option_that_was_meant(spark: Any, where: str, given: str, meant: str) -> None:
    from tests.spark.source.test_writing import columns

    with pytest.raises(InvalidInput, match=f"unknown option '{given.lower()}': is '{meant}' meant"):
        BufferWriter({"path": where, given: "1"}, columns("value binary"), overwrite=False)


def test_an_option_that_is_close_to_none_is_answered_with_all() -> None:
    all_of_them = r"store are: sync, mode; those of the data source are: avroSchema, columns, .*group"
    with pytest.raises(InvalidInput, match=all_of_them):
        _ = ReadOptions.of({"path": "/tmp/buffer", "colour": "1"}).store


def test_the_options_of_a_store_are_its_own(on_s3: Backlog) -> None:
    on_s3.put([b"a"])

    assert [row["value"] for row in backlog_rows(on_s3.reader())] == [b"a"]
