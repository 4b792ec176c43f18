"""From the text of Spark's exceptions back to our errors."""

from __future__ import annotations

import pytest

from penstock.errors import CorruptData, Fenced, InvalidInput, NotFound, PenstockError, ProcessFailed
from penstock.spark.spark_errors import our_error

STREAM_FAILED = """\
[STREAM_FAILED] Query [id = 05, runId = 20] terminated with exception: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/reading.py", line 92, in read_run
    raise
{text}

JVM stacktrace:
org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
=== Streaming Query ===
Identifier: [id = 05, runId = 20]"""


def found(text: str) -> tuple[type, str]:
    error = our_error(RuntimeError(STREAM_FAILED.format(text=text)))
    return type(error), str(error)


def test_an_error_of_ours_is_itself() -> None:
    error = NotFound("gone")
    assert our_error(error) is error


@pytest.mark.parametrize("kind", [NotFound, CorruptData, Fenced, ProcessFailed, InvalidInput, PenstockError])
def test_class_and_message_are_found_in_the_middle_of_a_text(kind: type[PenstockError]) -> None:
    assert found(f"penstock.errors.{kind.__name__}: the data of sequence 3 is gone") == (
        kind,
        "the data of sequence 3 is gone",
    )


def test_of_a_chain_it_is_the_last_that_was_raised() -> None:
    chain = (
        "penstock.errors.NotFound: first\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\npenstock.errors.CorruptData: second"
    )
    assert found(chain) == (CorruptData, "second")


def test_an_error_that_another_ones_message_quotes_is_part_of_the_message() -> None:
    text = "penstock.errors.ProcessFailed: enrich failed on records 0 to 2: ValueError: penstock.errors.Fenced: no"
    assert found(text) == (ProcessFailed, text.partition(": ")[2])


def test_a_message_of_several_lines_keeps_them_and_its_text_is_one() -> None:
    error = our_error(RuntimeError("penstock.errors.ProcessFailed: enrich failed: ValueError: three\nis too much"))
    assert isinstance(error, ProcessFailed)
    assert error.args == ("enrich failed: ValueError: three\nis too much",)
    assert str(error) == "enrich failed: ValueError: three\\nis too much"


def test_an_error_quoted_in_a_later_line_of_a_message_is_part_of_it_too() -> None:
    text = "penstock.errors.ProcessFailed: enrich failed: ValueError: text:\n  penstock.errors.Fenced: no"
    assert found(text)[0] is ProcessFailed


@pytest.mark.parametrize("name", ["Nonsense", "annotations", "PartitionOutOfRange"])
def test_a_name_that_is_no_error_of_ours_with_a_message_is_passed_over(name: str) -> None:
    assert our_error(RuntimeError(f"penstock.errors.{name}: what")) is None


def test_a_name_that_is_none_does_not_hide_one_before_it() -> None:
    assert found("penstock.errors.NotFound: gone\npenstock.errors.Nonsense: what")[0] is NotFound


def test_two_drivers_with_one_checkpoint_are_one_fenced_by_the_other() -> None:
    error = our_error(RuntimeError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."))
    assert isinstance(error, Fenced)
    assert "another driver" in str(error)


def test_whatever_else_spark_says_is_none_of_ours() -> None:
    assert our_error(RuntimeError(STREAM_FAILED.format(text="ValueError: penstock"))) is None
