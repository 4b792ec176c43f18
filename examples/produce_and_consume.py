"""Several producers, one consumer that keeps its place with its results: every event counted exactly once."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter

from penstock import Consumer, Producer


def produce(where: str, name: str, events: int) -> None:
    with Producer(where) as producer:
        for number in range(events):
            producer.produce_json({"user": name, "number": number})
    # Leaving the block has flushed: every event is durable, and in the queue.


def main(where: str) -> None:
    threads = [threading.Thread(target=produce, args=(where, name, 500)) for name in ("ann", "bob", "cid")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # A sink that can keep a number keeps the place with the result: here, two variables that change together.
    count, place = Counter[str](), None
    with Consumer(where) as consumer:
        for batch in consumer:
            more = Counter(entry.split(b'"')[3].decode() for entry in batch.entries)
            count, place = count + more, batch.sequence
            break  # and here this process could have died, without an ack

    with Consumer(where, last_acked_sequence=place) as consumer:
        for batch in consumer:
            count += Counter(entry.split(b'"')[3].decode() for entry in batch.entries)
            batch.ack()
        print(dict(sorted(count.items())), "left in the queue:", len(consumer))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-example-"))
