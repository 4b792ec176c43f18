"""The data source in SQL: views, and why there are no tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.backlogs import Backlog


@pytest.fixture
def dropped(session: Any) -> Any:
    session.sql("drop table if exists events")
    yield
    session.sql("drop table if exists events")


def test_a_temporary_view_is_read(session: Any, backlog: Backlog) -> None:
    backlog.put([b"a", b"b"])

    session.sql(f"create or replace temporary view seen using penstock options (path '{backlog.url}')")

    assert [row.text for row in session.sql("select string(value) as text from seen").collect()] == ["a", "b"]


@pytest.mark.usefixtures("dropped")
@pytest.mark.parametrize("place", ["options (path '{}')", "location '{}'"])
def test_a_table_is_refused_at_once_with_what_works(session: Any, backlog: Backlog, place: str) -> None:
    with pytest.raises(Exception, match=r"InvalidInput: a buffer cannot be .* use CREATE TEMPORARY VIEW name USING"):
        session.sql(f"create table events using penstock {place.format(backlog.url)}")

    assert not session.catalog.tableExists("events")


@pytest.mark.usefixtures("dropped")
def test_a_table_with_columns_says_what_works_when_it_is_used(session: Any, backlog: Backlog) -> None:
    # Spark asks the data source nothing when such a table is made.
    backlog.put([b"a"])
    session.sql(f"create table events (value binary) using penstock options (path '{backlog.url}')")

    for query in ("select value from events", "insert into events values (cast('b' as binary))"):
        with pytest.raises(Exception, match=r"InvalidInput: the buffer's place .* use CREATE TEMPORARY VIEW name"):
            session.sql(query).collect()
    assert backlog.values() == [b"a"]
