"""The formats that payloads are written in. The rest of the parser does not depend on which it is."""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from penstock.engine.parsing.json_payloads import JsonPayloads
from penstock.engine.parsing.msgpack_payloads import MsgpackPayloads
from penstock.engine.parsing.payload_format import ParseFormat

PayloadFormat: TypeAlias = JsonPayloads | MsgpackPayloads


@cache
def format_of(form: ParseFormat) -> PayloadFormat:
    """The format with this name."""
    return JsonPayloads() if form is ParseFormat.JSON else MsgpackPayloads()
