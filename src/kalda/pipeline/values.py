"""Values of records as columns of a table, and a reason for each that cannot be one.

Every record becomes a row. One whose value has the declared format has it in `value`; any other one has null there,
its bytes in `raw`, and in `reason` what is wrong, and so has one whose timestamp Spark does not have. A record without
a value (a tombstone) is good.

Not obvious:

- `from_avro` makes a row of nulls of a value that it cannot read, hence the field `_kalda_decoded`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kalda.pipeline.files import read_text
from kalda.pipeline.session import PipelineError, first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

FORMATS: Final = ("bytes", "string", "json", "avro", "protobuf")
INFER: Final = "infer"
SAMPLE_RECORDS: Final = 10_000
"""How many records of each partition a schema is inferred from."""


MAX_FIELDS: Final = 1_000
"""Fields of a JSON object that is a row, and columns of an inferred schema. Spark plans no table of 20,000 columns."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values are read."""

    name: str = "bytes"
    schema: str | None = None
    """json: columns as in `CREATE TABLE`; avro: the schema as JSON."""
    message: str | None = None
    """protobuf: the message's name."""
    descriptor: str | None = None
    """protobuf: the file that `protoc --descriptor_set_out` made."""
    registry: str | None = None
    """avro: the URL of a schema registry, which has the schema."""
    topics: tuple[str, ...] = ()
    """With a registry: the topics whose subjects have the schemas."""

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise PipelineError(f"value format {self.name}: {', '.join(FORMATS)} are possible")
        if self.registry is not None and self.name != "avro":
            raise PipelineError(f"a schema registry is used with value format avro, not {self.name}")
        if self.registry is not None and len(self.topics) != 1:
            raise PipelineError(
                f"with a schema registry, one topic is loaded at a time, not {len(self.topics)}: each has a schema of "
                f"its own, and a table has one"
            )
        if self.name in ("json", "avro") and not self.schema and self.registry is None:
            raise PipelineError(f"value format {self.name} needs a schema, or with json: {INFER}")
        if self.name == "protobuf" and not (self.message and self.descriptor):
            raise PipelineError("value format protobuf needs the name of the message and the file of descriptors")

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of `session.PACKAGES` it needs."""
        return (self.name,) if self.name in ("avro", "protobuf") else ()


def schema_text(given: str | None) -> str | None:
    """The schema itself, or what the file of that name has."""
    if given is not None and given.strip().endswith((".ddl", ".avsc", ".sql", ".txt", ".json")):
        path = Path(given.strip())
        if not path.exists():
            raise PipelineError(f"schema {given}: there is no such file")
        return read_text(path).strip()
    return given


def infer_schema(records: DataFrame) -> str:
    """A JSON schema of the values, as columns of `CREATE TABLE`. Raises `PipelineError` where no value is an object.

    A name stands for all that differ from it in case only, since no table has two such columns: the most frequent one.
    Of very many names the most frequent `MAX_FIELDS` are columns."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    texts = records.where("value IS NOT NULL").select(f.expr("try_validate_utf8(CAST(value AS STRING))").alias("value"))
    spark = records.sparkSession
    texts = texts.where("value IS NOT NULL").where(
        f.coalesce(f.size(f.json_object_keys("value")), f.lit(0)) <= MAX_FIELDS
    )
    names = _frequent_names(texts)
    reader = spark.read.option("columnNameOfCorruptRecord", "_corrupt")
    case = spark.conf.get("spark.sql.caseSensitive")
    spark.conf.set("spark.sql.caseSensitive", "true")  # else names that differ in case only end it
    try:
        found = reader.json(texts).schema
    except PySparkTypeError:  # Spark 4.1 takes no frame here
        found = reader.json(texts.rdd.map(itemgetter(0))).schema
    finally:
        spark.conf.set("spark.sql.caseSensitive", str(case))
    fields = [field for field in found.fields if field.name in names]
    if not fields:
        raise PipelineError("no value of the topic is a JSON object: give the schema, or value format string or bytes")
    for field in fields:
        field.dataType = _writable(field.dataType)
    return StructType(fields).toDDL()


def _frequent_names(texts: DataFrame) -> set[str]:
    """The names of the values' fields: of several that differ in case only, the most frequent."""
    from pyspark.sql import functions as f

    found = texts.select(f.explode(f.json_object_keys("value")).alias("name")).groupBy("name").count()
    kept: dict[str, str] = {}
    for row in found.orderBy(f.desc("count"), "name").limit(MAX_FIELDS * 2).collect():
        kept.setdefault(row["name"].lower(), row["name"])
    return set(list(kept.values())[:MAX_FIELDS])


def _writable(kind: DataType) -> DataType:
    """The type of a column that can be written: an object within an object has each name once, and not too many."""
    from pyspark.sql.types import ArrayType, StringType, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_writable(kind.elementType))
    if not isinstance(kind, StructType):
        return kind
    if len(kind.fields) > MAX_FIELDS:
        return StringType()  # of such an object Spark has the text then
    fields = {field.name.lower(): field for field in kind.fields}
    for field in fields.values():
        field.dataType = _writable(field.dataType)
    return StructType(list(fields.values()))


def with_values(records: DataFrame, value_format: ValueFormat) -> DataFrame:
    """The source's records with the column `value` of its format, `raw` and `reason`."""
    from pyspark.sql import functions as f

    value, wrong = _decoded(records.sparkSession, value_format)
    is_wrong = f.col("value").isNotNull() & wrong
    bad = is_wrong | f.col("timestamp").isNull()
    name = "registry" if value_format.registry is not None else value_format.name
    reason = f.when(is_wrong, f.lit(_REASONS[name])).when(bad, f.lit(_TIME))
    if value_format.name == "json":
        has_other_case, has_many = _names_of_json(str(value_format.schema))
        is_object = f.col("value").isNotNull() & _is_text()
        bad |= is_object & (has_other_case | has_many)
        reason = (
            f.when(is_wrong & ~_is_text(), f.lit(_REASONS["string"]))
            .when(is_object & has_many, f.lit(f"the object has more than {MAX_FIELDS} fields"))
            .when(is_object & has_other_case, f.lit("a field differs from one of the schema in case only"))
            .otherwise(reason)
        )
    return records.withColumns(
        {
            "reason": reason,
            "raw": f.when(bad, f.col("value")),
            "value": f.when(~bad, value),
        }
    )


_DECODED: Final = "_kalda_decoded"
_TIME: Final = "the timestamp is too far from 1970 for Spark's microseconds"
_REASONS: Final = {
    "bytes": "",
    "string": "the value is not UTF-8",
    "json": "the value is not a JSON object of the schema",
    "avro": "the value is not Avro of the schema",
    "protobuf": "the value is not a message of this type",
    "registry": "the value is not Avro of a version of the topic's subject in the schema registry",
}


def _is_text() -> Column:
    from pyspark.sql import functions as f

    return f.expr("is_valid_utf8(CAST(value AS STRING))")


def _decoded(spark: SparkSession, value_format: ValueFormat) -> tuple[Column, Any]:
    """The decoded value, and whether it cannot be decoded."""
    from pyspark.sql import functions as f

    match value_format.name:
        case "string":
            return f.col("value").cast("string"), ~_is_text()
        case "json":
            assert value_format.schema is not None
            value, wrong = _of_json(value_format.schema)
            return value, wrong | ~_is_text()
        case "avro":
            if value_format.registry is not None:
                return _of_registry(value_format)
            assert value_format.schema is not None
            return _of_avro(f.col("value"), value_format.schema, value_format.schema)
        case "protobuf":
            from pyspark.sql.protobuf.functions import from_protobuf

            message = str(value_format.message)
            parsed = _of_jar(
                lambda: from_protobuf(f.col("value"), message, value_format.descriptor, {"mode": "PERMISSIVE"}),
                "protobuf",
            )
            return parsed, parsed.isNull()
    return f.col("value"), f.lit(False)


def _of_json(schema: str) -> tuple[Column, Column]:
    """The value as an object of the schema, and whether it is none.

    Spark's parser ends behind the first object and passes over what follows it. So the value is parsed as the only
    element of a list within another object: what follows it makes that malformed, or the list longer."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    names = cast(StructType, StructType.fromDDL(schema)).names
    text = f.concat(f.lit('{"values":['), f.col("value").cast("string"), f.lit(f'\n],"{_DECODED}":true}}'))
    envelope = f"values array<struct<{schema}>>, {_DECODED} boolean, _corrupt string"
    parsed = f.from_json(text, envelope, {"columnNameOfCorruptRecord": "_corrupt"})
    found = f.get(parsed["values"], f.lit(0))
    is_whole = parsed["_corrupt"].isNull() & parsed[_DECODED].isNotNull() & (f.size(parsed["values"]) == 1)
    value = f.struct(*(found[name].alias(name) for name in names))
    return value, found.isNull() | ~f.coalesce(is_whole, f.lit(False))


def _names_of_json(schema: str) -> tuple[Column, Column]:
    """Whether a field of the object differs from one of the schema in case only, which Spark would pass over, and
    whether the object has too many."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    names = cast(StructType, StructType.fromDDL(schema)).names
    lower = [name.lower() for name in names]
    keys = f.json_object_keys(f.col("value").cast("string"))
    other_case = f.exists(keys, lambda key: f.lower(key).isin(*lower) & ~key.isin(*names))
    return f.coalesce(other_case, f.lit(False)), f.coalesce(f.size(keys) > MAX_FIELDS, f.lit(False))


def _of_avro(body: Column, writer: str, reader: str) -> tuple[Column, Column]:
    """The value, written with one schema and read into another one, and whether it cannot be decoded.

    Spark gives a record of nulls for what is no Avro, which may also be a good record. So the reader's schema has one
    field more, with a default: it is null only where the value cannot be decoded."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    schema = json.loads(reader)
    is_record = isinstance(schema, dict) and schema.get("type") == "record"
    if is_record:
        names = [field["name"] for field in schema["fields"]]
        schema["fields"].append({"name": _DECODED, "type": "boolean", "default": True})
    options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(schema)}
    parsed = _of_jar(lambda: from_avro(body, writer, options), "avro")
    if not is_record:
        return parsed, parsed.isNull()
    value = f.struct(*(parsed[name].alias(name) for name in names))
    return f.when(parsed.isNotNull(), value), parsed.isNull() | parsed[_DECODED].isNull()


def _of_registry(value_format: ValueFormat) -> tuple[Column, Column]:
    """Decoded by the schema whose id is before the value, into the schema of the load."""
    from pyspark.sql import functions as f

    from kalda.pipeline.registry import PREFIX_BYTES, subject_of

    subject = subject_of(str(value_format.registry), value_format.topics[0])
    reader = value_format.schema or subject.newest
    body = f.expr(f"substring(value, {PREFIX_BYTES + 1})")
    found, is_wrong = f.lit(None), f.lit(True)
    for number, writer in sorted(subject.schemas.items()):
        has_schema = f.substring("value", 1, PREFIX_BYTES) == f.lit(b"\0" + number.to_bytes(PREFIX_BYTES - 1, "big"))
        value, cannot = _of_avro(body, writer, reader)
        found, is_wrong = f.when(has_schema, value).otherwise(found), f.when(has_schema, cannot).otherwise(is_wrong)
    return found, is_wrong


def _of_jar(make: Any, name: str) -> Any:
    try:
        return make()
    except Exception as error:
        raise PipelineError(
            f"value format {name} needs Spark's jar for it, which is not in this session: {first_line(error)}"
        ) from error
