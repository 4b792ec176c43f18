"""A block that is sent again after a kill anywhere in its commit is in the target buffer once, also if it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

from penstock import Consumer, ConsumerConfig
from penstock.buffer.producer.block_appender import BlockAppender, BlockName, WrittenObject
from penstock.errors import InvalidInput
from penstock.records import values_to_arrow
from penstock.storage import DeleteResult, Object, ObjectMeta, ObjectStore, open_store
from penstock.storage.object_store import Data

MANIFESTS = ["native"]
BLOCKS = 3
LONG = 300  # objects of the second block: more than a tail holds, so that segments are written

T = TypeVar("T")


class Killed(BaseException):
    """The driver is gone."""


class DyingStore:
    """A store whose process dies before or after its n-th write."""

    def __init__(self, below: ObjectStore, write: int, *, after: bool) -> None:
        self._below = below
        self._remaining = write
        self._after = after
        self.is_dead = False

    @property
    def url(self) -> str:
        return self._below.url

    def get(self, path: str) -> Object:
        return self._below.get(path)

    def head(self, path: str) -> ObjectMeta:
        return self._below.head(path)

    def list_objects(self, prefix: str = "") -> Iterator[ObjectMeta]:
        return self._below.list_objects(prefix)

    def delete(self, paths: Iterable[str]) -> list[DeleteResult]:
        return self._below.delete(paths)

    def put(self, path: str, data: Data) -> str:
        return self._write(lambda: self._below.put(path, data))

    def put_if_absent(self, path: str, data: Data) -> str:
        return self._write(lambda: self._below.put_if_absent(path, data))

    def put_if_match(self, path: str, data: Data, version: str) -> str:
        return self._write(lambda: self._below.put_if_match(path, data, version))

    def _write(self, write: Callable[[], T]) -> T:
        self._remaining -= 1
        if self._remaining == 0 and not self._after:
            raise self._die()
        answer = write()
        if self._remaining == 0:
            raise self._die()
        return answer

    def _die(self) -> Killed:
        self.is_dead = True
        return Killed()


def objects_of(store: ObjectStore, block: int) -> list[WrittenObject]:
    """What the tasks of a block write: each time anew."""
    appender = BlockAppender(store)
    count = LONG if block == 1 else 2
    return [appender.write(values_to_arrow([b"%d/%d" % (block, place)])) for place in range(count)]


def drained(store: ObjectStore) -> list[bytes]:
    with Consumer(store, ConsumerConfig(gc=False)) as consumer:
        values = []
        for batch in consumer:
            values += batch.entries
            batch.ack()
        return values


@pytest.mark.parametrize("is_read", [True, False], ids=["read before it comes again", "still queued"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_block_is_there_once_wherever_its_commit_was_killed(fresh_name: str, after: bool, is_read: bool) -> None:
    kills = 0
    for write in range(1, 50):
        store = open_store(f"memory://{fresh_name}-{write}")
        found: list[bytes] = []
        was_killed = False
        for block in range(BLOCKS):
            name = BlockName("the-query", block)
            dying = DyingStore(store, write, after=after)
            try:
                BlockAppender(dying).append(objects_of(store, block), name)
            except Killed:
                was_killed = True
                kills += 1
                if is_read:
                    found += drained(store)
                BlockAppender(store).append(objects_of(store, block), name)
            if is_read:
                found += drained(store)
        # Once more, all of them: a checkpoint that was restored from a copy sends old blocks too, and is refused.
        for block in range(BLOCKS - 1):
            with pytest.raises(
                InvalidInput, match=rf"comes with transaction {block}, and {BLOCKS - 1} is its last one"
            ):
                BlockAppender(store).append(objects_of(store, block), BlockName("the-query", block))
        last = BLOCKS - 1
        assert not BlockAppender(store).append(objects_of(store, last), BlockName("the-query", last))
        found += drained(store)
        wanted = [b"%d/%d" % (block, place) for block in range(BLOCKS) for place in range(LONG if block == 1 else 2)]
        assert Counter(found) == Counter(wanted), write
        if not was_killed:
            break
    assert kills >= 4, "a head for each block, and a segment for the long one"
