"""The options of a read, and the columns that it gives: what is taken, and how the rest is refused."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import ConsumerConfig
from penstock.engine import CsvColumns, PayloadSchemas, ProtobufMessage
from penstock.errors import InvalidInput
from penstock.spark.source.options import OnCorruptBatch, OnError, ReadFormat, ReadOptions
from penstock.spark.source.schemas import UNPARSED, check_schema, columns_of
from tests.support.protobuf_messages import message_class

ASIDE = [StructField("_error", StringType()), StructField("_raw", BinaryType())]
ID = StructField("id", LongType())


def of(**given: str) -> ReadOptions:
    return ReadOptions.of({"path": "s3://bucket/events", **given})


def parsed(*fields: StructField) -> StructType:
    return StructType([ID, *fields])


# Options.


def test_without_options_a_read_is_as_the_documentation_says() -> None:
    assert of() == ReadOptions(
        "s3://bucket/events",
        format=ReadFormat.RAW,
        columns=None,
        on_error=OnError.DLQ,
        on_corrupt_batch=OnCorruptBatch.FAIL,
        group="default",
        starting_sequence=None,
        max_bytes=None,
        max_batches=None,
        max_records=None,
        self_regulation=True,
        target_partition_bytes=64 << 20,
        poll_interval=0.5,
        manifest_path="ingest/manifest",
        data_path_prefix="ingest",
        storage={},
    )


def test_every_option_is_taken_whatever_the_case_of_its_name() -> None:
    given = {
        "Path": "file:///events",
        "FORMAT": "msgpack",
        "columns": "id bigint",
        "OnError": "skip",
        "oncorruptbatch": "dlq",
        "group": "other",
        "startingSequence": "latest",
        "maxBytesPerTrigger": "64m",
        "maxBATCHESPerTrigger": "7",
        "maxrecordspertrigger": "8",
        "selfRegulation": "off",
        "targetPartitionBytes": "1k",
        "pollInterval": "0.25",
        "manifestPath": "queues/one",
        "dataPathPrefix": "data/one",
    }

    assert ReadOptions.of(given) == ReadOptions(
        "file:///events",
        format=ReadFormat.MSGPACK,
        columns="id bigint",
        on_error=OnError.SKIP,
        on_corrupt_batch=OnCorruptBatch.DLQ,
        group="other",
        starting_sequence="latest",
        max_bytes=64 << 20,
        max_batches=7,
        max_records=8,
        self_regulation=False,
        target_partition_bytes=1024,
        poll_interval=0.25,
        manifest_path="queues/one",
        data_path_prefix="data/one",
    )


def test_whatever_is_not_an_option_of_a_read_is_one_of_the_store() -> None:
    assert of(endpoint="http://127.0.0.1:1", Secret_Access_Key="s", pollInterval="1").storage == {
        "endpoint": "http://127.0.0.1:1",
        "secret_access_key": "s",
    }


def test_a_store_refuses_an_option_that_nobody_knows(tmp_path: Path) -> None:
    misspelt = ReadOptions.of({"path": str(tmp_path), "maxBytePerTrigger": "1"})

    with pytest.raises(InvalidInput, match="'maxbytepertrigger'"):
        _ = misspelt.store


def test_no_credential_is_in_options_as_they_are_shown() -> None:
    assert "hunter22" not in repr(of(secret_access_key="hunter22"))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1048576", 1 << 20),
        ("1b", 1),
        ("64k", 64 << 10),
        ("64m", 64 << 20),
        ("64 MB", 64 << 20),
        ("1 GiB", 1 << 30),
        (" 2t ", 2 << 40),
    ],
)
@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "targetPartitionBytes"])
def test_a_number_of_bytes_may_have_a_unit(name: str, text: str, size: int) -> None:
    options = of(**{name: text})

    assert size == (options.max_bytes if name == "maxBytesPerTrigger" else options.target_partition_bytes)


@pytest.mark.parametrize("text", ["0", "0m", "-1", "", "m", "1.5m", "1 mile", "64 m b", "1e6", "many"])
@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "targetPartitionBytes"])
def test_what_is_no_number_of_bytes_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        of(**{name: text})

    assert str(refused.value) == (
        f"{name} must be a number of bytes such as 1048576, 64m or 1g, and at least 1, not {text!r}"
    )


@pytest.mark.parametrize("text", ["0", "-1", "", "1.5", "1k", "all"])
@pytest.mark.parametrize("name", ["maxBatchesPerTrigger", "maxRecordsPerTrigger"])
def test_a_cap_that_is_no_whole_number_from_1_on_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name} must be an integer, 1 or more, not '?{text}'?$"):
        of(**{name: text})


@pytest.mark.parametrize("name", ["maxBatchesPerTrigger", "maxRecordsPerTrigger"])
def test_a_cap_may_be_1(name: str) -> None:
    options = of(**{name: "1"})

    assert {options.max_batches, options.max_records} == {None, 1}


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0.5", 0.5), ("1e3", 1000.0), ("3600", 3600.0)])
def test_a_poll_interval_is_0_or_more(text: str, seconds: float) -> None:
    assert of(pollInterval=text).poll_interval == seconds


@pytest.mark.parametrize("text", ["-0.1", "nan", "inf", "", "1s", "often"])
def test_what_is_no_poll_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^pollInterval must be a number of seconds, 0 or more, not '?{text}'?$"):
        of(pollInterval=text)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("format", "raw, json, msgpack, auto, avro, protobuf, csv, json-values"),
        ("onError", "dlq, skip, fail"),
        ("onCorruptBatch", "fail, dlq"),
        ("selfRegulation", "on, off"),
    ],
)
@pytest.mark.parametrize("text", ["", "JSON", "true", "none"])
def test_a_word_that_is_none_of_an_options_is_refused(name: str, allowed: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        of(**{name: text})

    assert str(refused.value) == f"{name} must be one of {allowed}, not {text!r}"


@pytest.mark.parametrize(
    ("text", "sequence"), [("earliest", None), ("latest", "latest"), ("0", 0), ("18446744073709551615", (1 << 64) - 1)]
)
def test_a_starting_sequence_is_a_word_or_a_number(text: str, sequence: int | str | None) -> None:
    assert of(startingSequence=text).starting_sequence == sequence


@pytest.mark.parametrize("text", ["", "-1", "1.5", "LATEST", "first", "0x1"])
def test_what_is_no_starting_sequence_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        of(startingSequence=text)

    assert str(refused.value) == f"startingSequence must be earliest, latest or a sequence, not {text!r}"


@pytest.mark.parametrize("given", [{}, {"path": ""}])
def test_a_read_without_a_place_says_how_to_give_one(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"place is missing: give it to load\(\.\.\.\)"):
        ReadOptions.of(given)


def test_columns_without_a_format_are_refused() -> None:
    with pytest.raises(InvalidInput, match="columns says what json or msgpack is parsed into: give format too"):
        of(columns="id bigint")


AVRO = '{"type": "record", "name": "E", "fields": [{"name": "id", "type": "long"}]}'


def test_schemas_of_payloads_are_options() -> None:
    schemas = of(format="auto", columns="id bigint", AVROSCHEMA=AVRO, csvColumns="id, event", csvDelimiter=";")
    assert schemas.payload_schemas == PayloadSchemas(AVRO, csv=CsvColumns(["id", "event"], ";"))
    descriptors, name = message_class()
    text = base64.b64encode(descriptors).decode()
    read = of(format="protobuf", columns="id bigint", protobufDescriptors=text, protobufMessage=name)
    assert read.payload_schemas == PayloadSchemas(protobuf=ProtobufMessage(descriptors, name))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"format": "avro"}, "format avro needs a schema of the payloads: give avroSchema"),
        ({"format": "csv"}, "give csvColumns"),
        ({"format": "protobuf"}, "give protobufDescriptors and protobufMessage"),
        ({"format": "auto", "avroSchema": "{"}, "the Avro schema is no schema"),
        ({"format": "auto", "protobufMessage": "t.Event"}, "go together: give both"),
        ({"format": "auto", "protobufMessage": "t.Event", "protobufDescriptors": "?"}, "a descriptor set in base64"),
        ({"format": "auto", "csvDelimiter": ";"}, "give csvColumns too"),
        ({"format": "auto", "csvColumns": "a,,b"}, "csv must name"),
        ({"avroSchema": AVRO}, "give format too"),
    ],
)
def test_schemas_of_payloads_that_are_wrong_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        of(**given)


def test_any_json_value_goes_into_one_column() -> None:
    check_schema(StructType([StructField("value", StringType())]), of(format="json-values"))
    with pytest.raises(InvalidInput, match="json-values has one column, 'value', a string"):
        check_schema(StructType([StructField("id", LongType())]), of(format="json-values"))


def test_a_consumer_gets_the_buffers_places() -> None:
    options = of(manifestPath="queues/one", dataPathPrefix="data/one")

    assert options.consumer_config(gc=False) == ConsumerConfig(
        manifest_path="queues/one", data_path_prefix="data/one", gc=False
    )


# Columns, where no schema is named.


def test_unparsed_columns_are_those_of_sparks_kafka_source_and_our_own() -> None:
    assert UNPARSED.simpleString() == (
        "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>,timestamp:timestamp,"
        "sequence:bigint,index:int,ingestion_time:timestamp,metadata:binary>"
    )


def test_a_raw_read_gives_the_unparsed_columns() -> None:
    assert columns_of(of()) == UNPARSED


def test_a_raw_read_that_sets_batches_aside_has_columns_for_them() -> None:
    assert columns_of(of(onCorruptBatch="dlq")) == StructType([*UNPARSED, *ASIDE])


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_columns_get_two_more_for_what_is_set_aside(form: str) -> None:
    assert columns_of(of(format=form, columns="id bigint")) == "id bigint, _error string, _raw binary"


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_columns_stay_as_they_are_where_nothing_is_set_aside(on_error: str) -> None:
    assert columns_of(of(format="json", columns="id bigint", onError=on_error)) == "id bigint"


def test_columns_get_two_more_for_batches_that_are_set_aside() -> None:
    options = of(format="json", columns="id bigint", onError="skip", onCorruptBatch="dlq")

    assert columns_of(options) == "id bigint, _error string, _raw binary"


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_parsed_read_without_columns_says_how_to_give_them(form: str) -> None:
    with pytest.raises(InvalidInput, match=rf"format {form} needs to know its columns: give \.schema\(\.\.\.\), or"):
        columns_of(of(format=form))


# Schemas that a user names.


def test_a_schema_may_name_some_of_the_unparsed_columns_in_any_order() -> None:
    check_schema(StructType([UNPARSED["metadata"], UNPARSED["value"], *ASIDE]), of())


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (StructField("values", BinaryType()), r"'values' is none of an unparsed read: key, value, headers, .*metadata"),
        (StructField("Value", BinaryType()), "'Value' is none of an unparsed read"),
        (StructField("key", StringType()), "'key' is binary, not string"),
        (StructField("index", LongType()), "'index' is int, not bigint"),
        (StructField("sequence", IntegerType()), "'sequence' is bigint, not int"),
        (StructField("headers", MapType(StringType(), BinaryType())), "'headers' is array<.*>, not map<string,binary>"),
        (StructField("_error", BinaryType()), "'_error' is string, not binary"),
        (StructField("_raw", StringType()), "'_raw' is binary, not string"),
    ],
)
def test_a_column_that_an_unparsed_read_does_not_have_is_refused(field: StructField, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"^the column {reason}"):
        check_schema(StructType([UNPARSED["value"], field]), of())


@pytest.mark.parametrize("form", ["raw", "json"])
def test_a_column_that_is_there_twice_is_refused(form: str) -> None:
    with pytest.raises(InvalidInput, match=r"^the column 'value' is there twice$"):
        check_schema(StructType([UNPARSED["value"], UNPARSED["key"], UNPARSED["value"]]), of(format=form))


@pytest.mark.parametrize("form", ["raw", "json"])
def test_batches_that_are_set_aside_need_a_column_for_the_error(form: str) -> None:
    with pytest.raises(InvalidInput, match="onCorruptBatch=dlq puts a row with '_error' in place of a batch"):
        check_schema(StructType([UNPARSED["value"], ASIDE[1]]), of(format=form, onCorruptBatch="dlq"))


@pytest.mark.parametrize(
    ("field", "path"),
    [
        (StructField("took", DayTimeIntervalType()), "'took' is"),
        (StructField("all", ArrayType(DayTimeIntervalType())), r"'all\[\]' is"),
        (StructField("in", StructType([StructField("took", DayTimeIntervalType())])), r"'in\.took' is"),
        (StructField("by", MapType(IntegerType(), StringType())), "'by' is"),
    ],
)
def test_a_type_that_no_payload_has_is_refused_with_its_path(field: StructField, path: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^the column {path} .*, which payloads cannot be parsed into$"):
        check_schema(parsed(field), of(format="json"))


@pytest.mark.parametrize("name", ["_error", "_raw"])
def test_in_a_parsed_read_what_is_set_aside_has_its_own_type(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^the column '{name}' is (string|binary), not timestamp$"):
        check_schema(parsed(StructField(name, TimestampType())), of(format="json"))


@pytest.mark.parametrize("on_error", ["dlq", "skip", "fail"])
def test_a_column_may_be_not_null_where_no_row_is_set_aside(on_error: str) -> None:
    check_schema(StructType([StructField("id", LongType(), nullable=False)]), of(format="json", onError=on_error))


@pytest.mark.parametrize(
    "aside",
    [
        pytest.param(ASIDE, id="both"),
        pytest.param(ASIDE[:1], id="error"),
        pytest.param(ASIDE[1:], id="raw"),
    ],
)
def test_a_column_that_is_not_null_has_no_place_beside_rows_that_are_set_aside(aside: list[StructField]) -> None:
    schema = StructType([StructField("id", LongType(), nullable=False), *aside])

    with pytest.raises(InvalidInput, match="the column 'id' is NOT NULL, and rows that are set aside have nulls"):
        check_schema(schema, of(format="json"))
