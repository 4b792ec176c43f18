"""The schemas of payloads that a pipeline file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engine import CsvColumns, PayloadSchemas
from penstock.errors import InvalidInput
from penstock.spark.pipeline.file import build, load_pipeline

AVRO = '{"type": "record", "name": "E", "fields": [{"name": "id", "type": "long"}]}'
START = 'source = "events"\n[sink]\nparquet = "table"\n[parse]\nformat = "auto"\nschema = "id bigint"\n'


class Calls:
    """Stands for a pipeline, and keeps what `parse` was given."""

    def __init__(self, **_: object) -> None:
        self.given: dict[str, object] = {}

    def parse(self, *_: object, **given: object) -> Calls:
        self.given = given
        return self

    def to_parquet(self, *_: object, **__: object) -> Calls:
        return self


def given_to_parse(folder: Path, keys: str) -> dict[str, object]:
    file = folder / "pipeline.toml"
    file.write_text(START + keys)
    built = build(load_pipeline(file), Calls)
    assert isinstance(built, Calls)
    return built.given


def test_schema_files_are_read_beside_the_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "event.avsc").write_text(AVRO)
    given = given_to_parse(tmp_path, 'avro_schema = "event.avsc"\ncsv_columns = ["id"]\ncsv_delimiter = ";"')
    assert given["payload_schemas"] == PayloadSchemas(AVRO, csv=CsvColumns(["id"], ";"))


def test_without_schemas_parse_gets_none(tmp_path: Path) -> None:
    assert "payload_schemas" not in given_to_parse(tmp_path, "")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('avro_schema = "nope.avsc"', r"parse\.avro_schema names the file nope\.avsc"),
        ('protobuf_message = "shop.Event"', "go together"),
        ('csv_delimiter = ";"', r"give parse\.csv_columns too"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(tmp_path: Path, keys: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        given_to_parse(tmp_path, keys)
