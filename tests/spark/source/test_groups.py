"""Groups of readers in Spark: several queries of one buffer, each at its own pace."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.buffer.groups import Groups
from penstock.errors import Fenced, InvalidInput
from tests.support.backlogs import Backlog, block_rows, numbers, plan
from tests.support.manifests import new_buffers_are

MANIFESTS = ["native"]


def test_groups_read_one_buffer_each_at_its_own_pace(backlog: Backlog) -> None:
    backlog.put_numbers(0, 4)
    fast, slow = backlog.stream_reader(pollInterval=0), backlog.stream_reader(group="slow", pollInterval=0)
    assert plan(fast, fast.initialOffset()["sequence"]) == 4
    assert slow.initialOffset()["sequence"] == 0
    assert plan(fast, 4) == 4
    assert backlog.sequences() == [0, 1, 2, 3], "the slow one has not acked them"
    assert numbers(block_rows(slow, 0, plan(slow, 0))) == [0, 1, 2, 3]
    assert plan(slow, 4) == 4
    assert backlog.sequences() == []


def test_where_a_new_group_begins_is_written_down(backlog: Backlog) -> None:
    backlog.put_numbers(0, 5)
    assert backlog.stream_reader(group="late", startingSequence="latest").initialOffset()["sequence"] == 5
    backlog.put_numbers(5, 9)
    assert backlog.stream_reader(group="late", startingSequence="latest").initialOffset()["sequence"] == 5
    assert backlog.stream_reader().initialOffset()["sequence"] == 0


def test_a_query_whose_group_is_dropped_ends_fenced(backlog: Backlog) -> None:
    backlog.put_numbers(0, 2)
    reader = backlog.stream_reader(group="audit", pollInterval=0)
    assert plan(reader, reader.initialOffset()["sequence"]) == 2
    Groups(backlog.store).drop("audit")
    with pytest.raises(Fenced, match=r"'audit' of .* is gone"):
        plan(reader, 2)
    assert [group.name for group in Groups(backlog.store).list()] == ["default"]


def test_a_manifest_of_version_1_has_one_reader(backlog: Backlog) -> None:
    with new_buffers_are("opendata"):
        backlog.put_numbers(0, 1)
    with pytest.raises(
        InvalidInput, match=r"^group must be 'default' on .*, which is a manifest of version 1, not 'a'"
    ):
        backlog.stream_reader(group="a").initialOffset()


def test_two_groups_in_one_query_see_everything(session: Any, backlog: Backlog) -> None:
    backlog.put_numbers(0, 6)
    one, two = (backlog.stream(session, group=group) for group in ("one", "two"))
    query = one.union(two).writeStream.format("memory").queryName("two_groups").trigger(availableNow=True).start()
    query.awaitTermination(120)
    rows = session.sql("select cast(value as string) as value from two_groups").collect()
    assert sorted(row.value for row in rows) == sorted([str(number) for number in range(6)] * 2)
