"""`RoutedSink` and `TieredSink`: each record to its route, all waited for, and exactly what failed is named."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine import BatchEngine, BufferSender, MemoryTransport, RoutedSink, TieredSink, WorkBatch, columns
from penstock.errors import EngineError, InvalidInput, RouteFailed, SinkFailed
from penstock.records import Record


def batch_of(*values: bytes) -> WorkBatch:
    return WorkBatch([Record(value) for value in values], commit_tokens=range(len(values)))


class Kept:
    """A sink that keeps what it gets, and notes that it was closed."""

    def __init__(self) -> None:
        self.batches: list[WorkBatch] = []
        self.is_closed = False

    def __call__(self, batch: WorkBatch) -> None:
        self.batches.append(batch)

    @property
    def values(self) -> list[bytes]:
        return [record.value for batch in self.batches for record in batch.records]

    def close(self) -> None:
        self.is_closed = True


def down(_: WorkBatch) -> None:
    raise OSError("the disk is full")


async def down_later(_: WorkBatch) -> None:
    await asyncio.sleep(0)
    raise OSError("the disk is full")


CLICK, VIEW, NESTED = b'{"type": "click", "n": 1}', b'{"type": "view"}', b'{"type": "click", "n": 2}'


def test_a_block_fans_out_in_order_and_commits_once() -> None:
    source, clicks, views = MemoryTransport(), Kept(), Kept()
    for value in (CLICK, VIEW, NESTED):
        source.inject(value)
    sink = RoutedSink({"click": clicks, "view": views}, by="field:type")
    BatchEngine().run(source, lambda batch: batch, sink, until_idle=True)
    assert (clicks.values, views.values, source.committed_sequence) == ([CLICK, NESTED], [VIEW], 2)
    assert [batch.commit_tokens for batch in clicks.batches] == [()]


def test_keys_and_headers_go_along() -> None:
    odd, even = Kept(), Kept()
    records = [Record(b"%d" % n, b"key", (("h", b"v"),), n) for n in range(5)]
    RoutedSink({"0": even, "1": odd}, by=lambda record: str(int(record.value) % 2))(WorkBatch(records))
    assert [record for batch in even.batches for record in batch.records] == records[::2]
    assert [record for batch in odd.batches for record in batch.records] == records[1::2]


@pytest.mark.parametrize(
    ("payload", "path"),
    [(b'{"a": {"b": "x"}}', "a.b"), (b'{"skip": [1, {"a": 2}], "a": "x"}', "a")],
)
def test_a_field_may_be_nested(payload: bytes, path: str) -> None:
    found = Kept()
    RoutedSink({"x": found}, by=f"field:{path}")(batch_of(payload))
    assert found.values == [payload]


@pytest.mark.parametrize("payload", [b"not JSON", b"{}", b'{"type": null}', b'{"type": 7}', b"[1]", b'{"type": ["x"]}'])
def test_what_has_no_route_goes_to_the_default(payload: bytes) -> None:
    rest = Kept()
    RoutedSink({"click": down}, by="field:type", default=rest)(batch_of(payload))
    assert rest.values == [payload]


def test_a_default_may_be_the_name_of_a_route() -> None:
    rest = Kept()
    RoutedSink({"rest": rest}, by="field:type", default="rest")(batch_of(CLICK))
    assert rest.values == [CLICK]


def test_without_a_default_a_record_without_a_route_fails_the_block_before_anything_is_sent() -> None:
    clicks = Kept()
    with pytest.raises(InvalidInput, match="record 1 is of the route 'view', and the routes are click"):
        RoutedSink({"click": clicks}, by="field:type")(batch_of(CLICK, VIEW))
    assert clicks.batches == []


def test_parsed_columns_are_routed_by_their_column_and_stay_columns() -> None:
    source, small, large = MemoryTransport(), Kept(), Kept()
    for n in (1, 2, 3):
        source.inject(b'{"kind": {"size": "%s"}, "n": %d}' % (b"large" if n == 2 else b"small", n))
    sink = RoutedSink({"small": small, "large": large}, by="field:kind.size")
    BatchEngine().run(source, columns(lambda rows: rows), sink, parse=True, until_idle=True)
    assert small.batches[0].arrow.column("n").to_pylist() == [1, 3]
    assert large.batches[0].arrow.column("n").to_pylist() == [2]


def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    batch = WorkBatch(pa.record_batch({"n": [1]}))
    with pytest.raises(InvalidInput, match="no column 'type' to route by; there are n"):
        RoutedSink({"x": down}, by="field:type", default="x")(batch)


def test_exactly_the_failing_route_is_named_and_nothing_is_committed() -> None:
    source, views = MemoryTransport(), Kept()
    source.inject(CLICK)
    source.inject(VIEW)
    with pytest.raises(SinkFailed, match="the route 'click' failed: OSError: the disk is full") as raised:
        BatchEngine().run(
            source, lambda batch: batch, RoutedSink({"click": down, "view": views}, by="field:type"), until_idle=True
        )
    cause = raised.value.__cause__
    assert isinstance(cause, RouteFailed)
    assert cause.routes == ("click",)
    assert "'view'" not in str(cause)
    assert (views.values, source.committed_sequence) == ([VIEW], None)


def test_all_routes_are_waited_for_before_the_error_is_raised() -> None:
    slow: Future[None] = Future()
    failed: Future[None] = Future()
    failed.set_exception(OSError("no"))
    sink = RoutedSink({"click": lambda _: failed, "view": lambda _: slow}, by="field:type")
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(sink, batch_of(CLICK, VIEW))
        with pytest.raises(TimeoutError):
            sending.result(0.05)
        slow.set_result(None)
        with pytest.raises(RouteFailed) as raised:
            sending.result(30)
    assert raised.value.routes == ("click",)


def test_coroutines_and_plain_sinks_are_awaited_together() -> None:
    views, seen = Kept(), list[bytes]()

    async def click(batch: WorkBatch) -> None:
        await asyncio.sleep(0)
        seen.extend(record.value for record in batch.records)

    asyncio.run(RoutedSink({"click": click, "view": views}, by="field:type")(batch_of(CLICK, VIEW)))
    assert (seen, views.values) == ([CLICK], [VIEW])
    with pytest.raises(RouteFailed) as raised:
        asyncio.run(RoutedSink({"click": down_later, "view": views}, by="field:type")(batch_of(CLICK, VIEW)))
    assert raised.value.routes == ("click",)


@pytest.mark.parametrize("default", [None, "x"])
def test_a_function_for_the_route_that_is_async_is_refused_and_not_sent_to_the_default(default: str | None) -> None:
    async def by(record: Record) -> str:
        return "x"

    kept = Kept()
    with pytest.raises(InvalidInput, match="by must be a plain function, and it returned a coroutine"):
        RoutedSink({"x": kept}, by=by, default=default)(batch_of(CLICK))  # type: ignore[arg-type]
    assert kept.batches == []


@pytest.mark.parametrize("sink_of", [lambda writes: RoutedSink({"x": writes}, by=lambda _: "x"), TieredSink])
def test_a_list_of_awaitables_is_awaited_as_that_of_any_sink(sink_of: Any) -> None:
    done, fallen = list[bytes](), list[WorkBatch]()

    async def put(record: Record) -> None:
        await asyncio.sleep(0)
        if record.value == b"bad":
            raise OSError("no room")
        done.append(record.value)

    def writes(batch: WorkBatch) -> list[Any]:
        return [*map(put, batch.records), None]

    sink = TieredSink(writes, fallen.append) if sink_of is TieredSink else sink_of(writes)
    source = MemoryTransport()
    source.send(map(Record, [b"1", b"2"]))
    BatchEngine().run(source, lambda batch: batch, sink, until_idle=True)
    assert (sorted(done), source.committed_sequence, fallen) == ([b"1", b"2"], 1, [])
    source.send(map(Record, [b"3", b"bad"]))
    if sink_of is TieredSink:
        BatchEngine().run(source, lambda batch: batch, sink, until_idle=True)
        assert [len(batch) for batch in fallen] == [2]
        return
    with pytest.raises(SinkFailed, match="the route 'x' failed: OSError: no room"):
        BatchEngine().run(source, lambda batch: batch, sink, until_idle=True)
    assert source.committed_sequence == 1


def test_awaitables_of_a_list_are_cancelled_with_the_sink() -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def put() -> None:
            begun.set()
            await asyncio.sleep(3600)

        sending = asyncio.ensure_future(RoutedSink({"x": lambda _: [put()]}, by=lambda _: "x")(batch_of(CLICK)))
        await begun.wait()
        before = asyncio.all_tasks() - {sending}
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        put_tasks = before - {asyncio.current_task()}
        await asyncio.wait(put_tasks, timeout=30)
        assert all(task.cancelled() for task in put_tasks)

    asyncio.run(main())


def test_close_closes_each_sink_that_can_be_closed() -> None:
    first, second = Kept(), Kept()
    sender = BufferSender("memory://routed-close")
    with RoutedSink({"a": first, "b": sender.send, "c": down}, by="field:type", default=second):
        pass
    assert first.is_closed
    assert second.is_closed
    with pytest.raises(Exception, match="closed"):
        sender.send([Record(b"a")])


@pytest.mark.parametrize(
    ("sinks", "by", "default"),
    [
        ({}, "field:type", None),
        ({"a": 1}, "field:type", None),
        ({"a": down}, "type", None),
        ({"a": down}, "field:", None),
        ({"a": down}, "field:a..b", None),
        ({"a": down}, "field:type", "b"),
        ({"a": down}, "field:type", 7),
        ({"default": down}, "field:type", down),
    ],
)
def test_what_cannot_be_a_routed_sink_is_refused(sinks: dict[str, object], by: str, default: object) -> None:
    with pytest.raises(InvalidInput):
        RoutedSink(sinks, by=by, default=default)  # type: ignore[arg-type]


# Tiers


def test_the_second_takes_what_the_first_refuses_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    kept, sink = Kept(), TieredSink(down, second := Kept())
    with caplog.at_level(logging.WARNING, "penstock.engine"):
        sink(batch_of(CLICK))
    TieredSink(kept, second)(batch_of(VIEW))
    assert (kept.values, second.values, sink.refused) == ([VIEW], [CLICK], 1)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "penstock.engine"]
    assert "the disk is full" in message


def test_a_write_that_fails_later_is_a_refusal_too() -> None:
    failed: Future[None] = Future()
    failed.set_exception(OSError("no"))
    second = Kept()
    TieredSink(lambda _: failed, second)(batch_of(CLICK))
    assert second.values == [CLICK]


def test_an_interrupt_is_no_refusal() -> None:
    def interrupted(_: WorkBatch) -> None:
        raise KeyboardInterrupt

    second = Kept()
    with pytest.raises(KeyboardInterrupt):
        TieredSink(interrupted, second)(batch_of(CLICK))
    assert second.batches == []


def test_if_both_fail_both_causes_are_named() -> None:
    def also_down(_: WorkBatch) -> None:
        raise ValueError("not this one either")

    with pytest.raises(EngineError, match=r"OSError: the disk is full.*ValueError: not this one either"):
        TieredSink(down, also_down)(batch_of(CLICK))


def test_tiers_may_be_coroutines() -> None:
    second = Kept()
    asyncio.run(TieredSink(down_later, second)(batch_of(CLICK)))
    assert second.values == [CLICK]
    with pytest.raises(EngineError, match="and the fallback failed too"):
        asyncio.run(TieredSink(down, down_later)(batch_of(CLICK)))


def test_a_tier_may_be_a_route() -> None:
    views, fallback = Kept(), Kept()
    RoutedSink({"click": TieredSink(down, fallback), "view": views}, by="field:type")(batch_of(CLICK, VIEW))
    assert (fallback.values, views.values) == ([CLICK], [VIEW])


@pytest.mark.parametrize("is_async_run", [False, True], ids=["run", "run_async"])
def test_an_engine_awaits_async_routes_and_names_the_one_that_fails(is_async_run: bool) -> None:
    got = list[bytes]()

    async def good(batch: WorkBatch) -> None:
        await asyncio.sleep(0)
        got.extend(record.value for record in batch.records)

    async def bad(batch: WorkBatch) -> None:
        await asyncio.sleep(0)
        raise OSError("the bad one is gone")

    def run(*payloads: bytes) -> MemoryTransport:
        source, engine = MemoryTransport(), BatchEngine()
        for payload in payloads:
            source.inject(payload)
        arguments = (source, lambda batch: batch, RoutedSink({"good": good, "bad": bad}, by="field:type"))
        if is_async_run:
            asyncio.run(engine.run_async(*arguments, until_idle=True))
        else:
            engine.run(*arguments, until_idle=True)
        return source

    assert run(b'{"type": "good", "n": 1}').committed_sequence == 0
    with pytest.raises(SinkFailed, match=r"the route 'bad' failed.*the bad one is gone"):
        run(b'{"type": "good", "n": 2}', b'{"type": "bad"}')
    assert got == [b'{"type": "good", "n": 1}', b'{"type": "good", "n": 2}']
