"""The sentences of values that are bad."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kalda.pipeline.formats.faults import of_json, of_text

ITEM = StructType([StructField("price", DoubleType()), StructField("count", IntegerType())])
SCHEMA = StructType(
    [
        StructField("n", IntegerType()),
        StructField("s", StringType()),
        StructField("is", BooleanType()),
        StructField("day", DateType()),
        StructField("total", DecimalType(5, 2)),
        StructField("items", ArrayType(ITEM)),
        StructField("by", MapType(StringType(), IntegerType())),
        StructField("at", DateType(), metadata={"comment": "days"}),
    ]
)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"\xff", "the value is not UTF-8: byte 0 is 0xff"),
        (b"", "the value is not JSON: Expecting value at character 0"),
        (b'{"n": 1}{"n": 2}', "the value is more than one JSON object: it goes on at character 8"),
        (b"[1]", "the value is [1], not a JSON object"),
        (b"null", "the value is null, not a JSON object"),
        (b'{"n": "x"}', 'field n is "x", not an int'),
        (b'{"n": 1.5}', "field n is 1.5, not an int"),
        (b'{"n": 2147483648}', "field n is 2147483648, not an int"),
        (b'{"n": true}', "field n is true, not an int"),
        (b'{"s": {"any": 1}, "is": 1}', "field is is 1, not a boolean"),
        (b'{"day": "tomorrow"}', 'field day is "tomorrow", not a date'),
        (b'{"total": 1000}', "field total is 1000, not a decimal(5,2)"),
        (b'{"items": {"price": 1}}', 'field items is {"price": 1}, not a list'),
        (b'{"items": [{"price": 1, "count": 1}, {"price": "much"}]}', 'field items[1].price is "much", not a double'),
        (b'{"items": [null, 7]}', "field items[1] is 7, not an object"),
        (b'{"by": {"a": 1, "b": "x"}}', 'field by.b is "x", not an int'),
        (b'{"at": 99999999}', "field at is 99999999, not a date in days since 1970 of the years 1 to 9999"),
        (b'{"N": 1}', "field N differs from n of the schema in case only"),
        (b'{"n": null, "other": []}', "the value is not a JSON object of the schema"),  # what Spark alone refuses
        (b"[" * 100_000, "the value is not JSON that can be read: maximum recursion depth exceeded"),
    ],
)
def test_the_sentence_names_the_field_and_the_cause(value: bytes, sentence: str) -> None:
    assert of_json(SCHEMA)(value).startswith(sentence)


def test_a_sentence_has_the_beginning_of_a_long_value() -> None:
    found = of_json(SCHEMA)(json.dumps({"n": "x" * 1_000}).encode())
    assert found == f'field n is "{"x" * 59}..., not an int'


def test_a_text_names_the_byte() -> None:
    assert of_text(b"abc\xc3(") == "the value is not UTF-8: byte 3 is 0xc3"
