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
@pytest.mark.parametrize("create", ["create table", "create table if not exists", "create or replace table"])
@pytest.mark.parametrize("place", ["options (path '{}')", "location '{}'"])
def test_a_table_is_refused_at_once_with_what_works(session: Any, backlog: Backlog, create: str, place: str) -> None:
    with pytest.raises(Exception, match=r"InvalidInput: a buffer cannot be .* use CREATE TEMPORARY VIEW name USING"):
        session.sql(f"{create} events using penstock {place.format(backlog.url)}")

    assert not session.catalog.tableExists("events")


@pytest.mark.usefixtures("dropped")
@pytest.mark.parametrize("create", ["create table", "create or replace table"])
@pytest.mark.parametrize("place", ["", "options (path '{}')", "location '{}'"])
def test_a_table_of_a_query_is_refused_at_once_and_nothing_is_appended(
    session: Any, backlog: Backlog, create: str, place: str
) -> None:
    backlog.put([b"a"])

    with pytest.raises(Exception, match=r"InvalidInput: the buffer's place .* use CREATE TEMPORARY VIEW name"):
        session.sql(f"{create} events using penstock {place.format(backlog.url)} as select cast('b' as binary) value")

    assert not session.catalog.tableExists("events")
    assert backlog.values() == [b"a"]


@pytest.mark.usefixtures("dropped")
@pytest.mark.parametrize("mode", ["errorifexists", "append", "overwrite", "ignore"])
def test_save_as_table_without_a_path_is_refused_at_once(session: Any, mode: str) -> None:
    rows = session.sql("select cast('b' as binary) value")

    with pytest.raises(Exception, match=r"InvalidInput: the buffer's place .* use CREATE TEMPORARY VIEW name"):
        rows.write.format("penstock").mode(mode).saveAsTable("events")

    assert not session.catalog.tableExists("events")


@pytest.mark.usefixtures("dropped")
def test_save_as_table_with_a_path_appends_once_and_says_what_works_when_the_table_is_used(
    session: Any, backlog: Backlog
) -> None:
    # Spark tells a writer the same as for `save`.
    rows = session.sql("select cast('b' as binary) value")
    rows.write.format("penstock").mode("append").option("path", backlog.url).saveAsTable("events")
    assert backlog.values() == [b"b"]

    with pytest.raises(Exception, match=r"InvalidInput: the buffer's place .* use CREATE TEMPORARY VIEW name"):
        session.sql("select value from events").collect()


@pytest.mark.usefixtures("dropped")
def test_a_table_with_columns_says_what_works_when_it_is_used(session: Any, backlog: Backlog) -> None:
    # Spark asks the data source nothing when such a table is made.
    backlog.put([b"a"])
    session.sql(f"create table events (value binary) using penstock options (path '{backlog.url}')")

    for query in ("select value from events", "insert into events values (cast('b' as binary))"):
        with pytest.raises(Exception, match=r"InvalidInput: the buffer's place .* use CREATE TEMPORARY VIEW name"):
            session.sql(query).collect()
    assert backlog.values() == [b"a"]
