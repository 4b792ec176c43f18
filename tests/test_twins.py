"""Every public method that can wait has an awaitable twin with the same parameters, and every twin a method."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from penstock import Consumer, DurableEventQueue, EventQueue, FetchHandle, Producer
from penstock.core import Closing
from penstock.metalog import (
    InProcessMetadataLog,
    KafkaMetadataLog,
    MetadataLog,
    ObjectMetadataLog,
    SegmentCatalog,
    Subscription,
)

CLASSES = (
    Producer,
    Consumer,
    FetchHandle,
    EventQueue,
    DurableEventQueue,
    MetadataLog,
    InProcessMetadataLog,
    ObjectMetadataLog,
    KafkaMetadataLog,
    Subscription,
    SegmentCatalog,
)

WITHOUT_TWIN = {
    # These look at memory, or change it, under a lock that is held for a moment.
    Consumer: {"fetch_handle", "waiting_from"},
    EventQueue: {"pop", "push_front"},
    Subscription: {"add", "assigned", "remove"},
    SegmentCatalog: {"assigned"},
    MetadataLog: {"subscribe"},
    InProcessMetadataLog: {"open_feed", "subscribe"},
    # A client is made for it, which connects in threads of its own.
    KafkaMetadataLog: {"open_feed", "subscribe"},
    ObjectMetadataLog: {"begin_anew", "open_feed", "subscribe"},
    # For a thread: those that count may wait for a read of the disk, and `approximate_len` never does.
    DurableEventQueue: {"approximate_len", "corrupt_keys", "iterate", "oldest_age", "ready_len"},
}
ALSO = {
    Consumer: {"collect_if_due"},  # `close_async` does it
    FetchHandle: {"fetch_for"},  # what `fetch` calls
}
MORE_OF_BLOCKING = {"into"}  # of `poll_bytes`: to know what was taken when an interrupt comes


def methods_of(one: type) -> Iterator[str]:
    for name in dir(one):
        found = getattr(one, name)
        if not name.startswith("_") and (inspect.isfunction(found) or inspect.ismethod(found)):
            yield name


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: str(one.__name__))
def test_every_method_that_can_wait_has_a_twin(one: type) -> None:
    methods = set(methods_of(one))
    twins = {name.removesuffix("_async") for name in methods if name.endswith("_async")}
    blocking = {name for name in methods if not name.endswith("_async")}
    assert blocking - twins == WITHOUT_TWIN.get(one, set()) | ALSO.get(one, set())
    assert twins - blocking <= {"open", "fetch"}  # what a constructor does, and `fetch_descriptor` by a shorter name


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: str(one.__name__))
def test_a_twin_has_the_parameters_of_its_method(one: type) -> None:
    for name in methods_of(one):
        twin = getattr(one, f"{name}_async", None)
        if twin is not None and name != "fetch":
            parameters = inspect.signature(getattr(one, name)).parameters
            assert [str(value) for key, value in parameters.items() if key not in MORE_OF_BLOCKING] == [
                str(value) for value in inspect.signature(twin).parameters.values()
            ], name


@pytest.mark.parametrize("one", CLASSES, ids=lambda one: str(one.__name__))
def test_what_can_be_closed_is_an_async_context_manager_and_can_be_opened_without_waiting(one: type) -> None:
    if hasattr(one, "close"):
        assert {"__aenter__", "__aexit__", "close_async"} <= set(dir(one))
        assert hasattr(one, "open_async") == issubclass(one, Closing)
