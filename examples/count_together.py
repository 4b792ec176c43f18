"""Eight processes count together in one object: compare-and-set, and a token that decides after a failed write.

Run it with a place of your own: python examples/count_together.py s3://bucket/prefix (default: a temporary directory).
"""

import json
import multiprocessing
import sys
import tempfile
import uuid

from penstock import open_store
from penstock.errors import NotFound, StorageError

PROCESSES = 8
INCREMENTS = 25


def count(where: str) -> None:
    store = open_store(where)
    for _ in range(INCREMENTS):
        token = str(uuid.uuid4())
        while True:
            try:
                found = store.get("counter")
                tokens, version = json.loads(found.data), found.version
            except NotFound:
                tokens, version = [], None
            if token in tokens:
                break
            data = json.dumps([*tokens, token]).encode()
            try:
                if version is None:
                    store.put_if_absent("counter", data)
                else:
                    store.put_if_match("counter", data, version)
                break
            except StorageError:
                continue


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-example-")
    processes = multiprocessing.get_context("spawn").Pool(PROCESSES)
    with processes:
        processes.map(count, [where] * PROCESSES)
    print(f"{len(json.loads(open_store(where).get('counter').data))} increments in {where}")
