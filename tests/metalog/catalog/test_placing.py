"""Where the events of a partition go: what Kafka's own partitioner answered, written down."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock.errors import InvalidInput
from penstock.metalog.catalog.placing import metadata_partition_for
from penstock.metalog.catalog.segment import TopicIdPartition

COUNTS = (1, 2, 50, 64, 1000, 2_147_483_647)

ANSWERS = [
    ("00112233445566778899aabbccddeeff", 3, (0, 1, 49, 27, 699, 211_780_699)),
    ("0123456789abcdeffedcba9876543210", 0, (0, 1, 11, 17, 361, 1_817_281_361)),
    ("00000000000000000000000000000000", 0, (0, 0, 6, 44, 756, 2_043_291_756)),
    ("00000000000000000000000000000001", 0, (0, 1, 35, 51, 835, 1_180_230_835)),
    ("00000000000000000000000000000001", 7, (0, 0, 46, 2, 546, 324_980_546)),
    ("00000000000000010000000000000000", 1, (0, 0, 46, 60, 996, 241_943_996)),
    ("ffffffffffffffffffffffffffffffff", 2_147_483_647, (0, 0, 10, 38, 910, 27_631_910)),
    ("ffffffffffffffffffffffffffffffff", -1, (0, 0, 20, 40, 120, 1_270_230_120)),
    ("80000000000000007fffffffffffffff", 999, (0, 0, 42, 26, 42, 144_318_042)),
]


@pytest.mark.parametrize(("topic_id", "partition", "places"), ANSWERS)
def test_a_partition_is_placed_where_kafka_places_it(topic_id: str, partition: int, places: tuple[int, ...]) -> None:
    tp = TopicIdPartition(UUID(topic_id), "orders", partition)
    assert tuple(metadata_partition_for(tp, count) for count in COUNTS) == places


def test_a_renamed_topic_stays_where_it_is() -> None:
    places = {metadata_partition_for(TopicIdPartition(UUID(int=5), name, 1), 1000) for name in ("a", "b", "")}
    assert len(places) == 1


def test_many_partitions_spread_over_all_places() -> None:
    places = {metadata_partition_for(TopicIdPartition(UUID(int=5), "t", partition), 50) for partition in range(1000)}
    assert places == set(range(50))


@pytest.mark.parametrize("count", [0, -1, 1.0, "50", None, True])
def test_a_count_below_one_is_refused(count: Any) -> None:
    with pytest.raises(InvalidInput, match="count must be an integer, 1 or more, not"):
        metadata_partition_for(TopicIdPartition(UUID(int=5), "t", 0), count)


def test_what_is_no_partition_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tp must be a TopicIdPartition, not 'orders-0'"):
        metadata_partition_for("orders-0", 50)  # type: ignore[arg-type]
