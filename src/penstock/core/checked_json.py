"""Small objects that people can read: one line of JSON whose last field is a checksum of the fields before it.

```text
{"version":1,"partition_count":4,"xxh3":"16 hexadecimal digits"}
```

The checksum is XXH3 with 64 bits over the same line without that field. There is one way to write the fields down, and
any other bytes are refused: so a byte that was changed is noticed wherever it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import xxhash

from penstock.errors import CorruptData

_FIELD = "xxh3"


def encode_fields(fields: Mapping[str, str | int]) -> bytes:
    """The bytes of an object with these fields, and a line break.

    >>> encode_fields({"version": 1}).decode().rstrip()
    '{"version":1,"xxh3":"91ecb4741bd5cfbf"}'
    """
    line = json.dumps(fields, separators=(",", ":"))
    digest = xxhash.xxh3_64_hexdigest(line.encode())
    return (json.dumps({**fields, _FIELD: digest}, separators=(",", ":")) + "\n").encode()


def decode_fields(data: bytes, expected: Mapping[str, type[str] | type[int]], version: int) -> dict[str, str | int]:
    """The fields of such an object, which are these, in this order, behind its version.

    Raises `CorruptData` saying what is wrong.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"it is no line of JSON: {error}") from error
    if not isinstance(fields, dict) or "version" not in fields:
        raise CorruptData("it is no JSON object with a version")
    if type(fields["version"]) is not int or fields["version"] != version:
        raise CorruptData(f"unsupported version {fields['version']!r:.50}; this Penstock reads {version}")
    fields.pop(_FIELD, None)
    if data != _encoded(fields):
        raise CorruptData("its checksum is wrong: its bytes are not those that were written")
    names = ["version", *expected]
    if list(fields) != names or not all(type(fields[name]) is kind for name, kind in expected.items()):
        raise CorruptData(f"its fields are {', '.join(map(repr, fields))}, and must be {', '.join(names)}")
    return fields


def _encoded(fields: dict[str, str | int]) -> bytes | None:
    try:
        return encode_fields(fields)
    except (ValueError, RecursionError):
        return None
