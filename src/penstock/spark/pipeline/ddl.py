"""The columns of a schema in DDL, without a JVM: what `penstock run --check` can know before Spark is started.

PySpark asks its JVM to parse DDL. This reads the part of it that pipelines use; of the rest it says so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidInput

_TYPES: dict[str, Callable[[], DataType]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
    "string": StringType,
    "binary": BinaryType,
}
_NESTED = ("array", "map", "struct", "decimal", "dec", "numeric")
# Types, and clauses of a column, that Spark knows and this does not read.
_SPARKS_OWN = frozenset(
    {"variant", "interval", "void", "char", "character", "varchar", "time", "geometry", "geography"}
    | {"collate", "default", "generated"}
)
_TOKEN = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'[^']*')|(?P<sign>[<>(),:]))")


class NotRead(Exception):
    """The DDL may be right, and is not read here."""


def columns_in(ddl: str) -> StructType | None:
    """The columns; None where only Spark can say. Raises `InvalidInput` for what Spark would refuse.

    >>> columns_in("id bigint NOT NULL, tags array<string>").simpleString()
    'struct<id:bigint,tags:array<string>>'
    >>> columns_in("doc variant") is None
    True
    """
    reader = _Reader(ddl)
    try:
        columns = reader.fields(end=None)
    except NotRead:
        return None
    return columns


class _Reader:
    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while ddl[at:].strip():
            found = _TOKEN.match(ddl, at)
            if found is None:
                raise self._error(f"there is something wrong at {ddl[at:].strip()[:20]!r}")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind]))
            at = found.end()
        self._at = 0

    def fields(self, end: str | None) -> StructType:
        fields: list[StructField] = []
        while True:
            kind, name = self._next("the name of a column")
            if kind not in ("word", "quoted"):
                raise self._error(f"there is {name!r} in place of the name of a column")
            self._take(":")
            data_type = self._type()
            is_nullable = not self._clauses()
            fields.append(StructField(name, data_type, is_nullable))
            if not self._take(","):
                break
        if end is not None and not self._take(end):
            raise self._error(f"{end!r} is missing")
        if end is None and self._at < len(self._tokens):
            raise self._error(f"{self._tokens[self._at][1]!r} is not expected")
        return StructType(fields)

    def _type(self) -> DataType:
        kind, word = self._next("a type")
        name = word.lower()
        if kind == "word" and name in _TYPES:
            return _TYPES[name]()
        if name in _SPARKS_OWN:
            raise NotRead
        if kind != "word" or name not in _NESTED:
            known = difflib.get_close_matches(name, [*_TYPES, *_NESTED], n=1)
            raise self._error(f"{word!r} is no type" + (f"; did you mean {known[0]}?" if known else ""))
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if not self._take("<"):
            raise self._error(f"{word} needs <...>")
        if name == "struct":
            return self.fields(end=">")
        first = self._type()
        if name == "array":
            self._expect(">")
            return ArrayType(first)
        self._expect(",")
        second = self._type()
        self._expect(">")
        return MapType(first, second)

    def _decimal(self) -> DecimalType:
        if not self._take("("):
            return DecimalType(10, 0)
        numbers = [self._number()]
        if self._take(","):
            numbers.append(self._number())
        self._expect(")")
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 1 <= precision <= 38 or scale > precision:
            raise self._error(
                f"decimal({precision},{scale}) cannot be: at most 38 digits, and no more behind the point"
            )
        return DecimalType(precision, scale)

    def _clauses(self) -> bool:
        """Read what may follow a type; whether that is NOT NULL."""
        is_required = False
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "word":
            word = self._next("")[1].lower()
            if word == "not" and self._at < len(self._tokens) and self._tokens[self._at][1].lower() == "null":
                self._at += 1
                is_required = True
            elif word == "comment" and self._at < len(self._tokens) and self._tokens[self._at][0] == "text":
                self._at += 1
            elif word in _SPARKS_OWN:
                raise NotRead
            else:
                raise self._error(f"{word!r} is not expected: is a comma missing before it?")
        return is_required

    def _number(self) -> int:
        _, word = self._next("a number")
        if not word.isdecimal():
            raise self._error(f"{word!r} is no number")
        return int(word)

    def _next(self, what: str) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._error(f"{what} is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, sign: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == ("sign", sign):
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise self._error(f"{sign!r} is missing")

    def _error(self, problem: str) -> InvalidInput:
        return InvalidInput(f"the schema {self._ddl!r} cannot be read: {problem}")
