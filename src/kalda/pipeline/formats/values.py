"""Values of records as columns of a table, and a reason for each that cannot be one.

Every record becomes a row. One whose value has the declared format has it in `value`; any other one has null there,
its bytes in `raw`, and in `reason` what is wrong, and so has one whose timestamp Spark does not have. A record without
a value (a tombstone) is good. What a value has beyond its columns is in `_rescued`, as JSON. Keys are decoded likewise,
into columns that begin with `key_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kalda.pipeline.files import read_bytes, read_text
from kalda.pipeline.formats.json_values import MAX_FIELDS, json_columns, parsed_columns, struct_of
from kalda.pipeline.session import PipelineError, settings_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from kalda.pipeline.formats.faults import Fault

FORMATS: Final = ("bytes", "string", "json", "avro", "protobuf", "registry")
INFER: Final = "infer"
SAMPLE_RECORDS: Final = 10_000
"""How many records of each partition a schema is inferred from."""

RESCUED: Final = "_rescued"
"""The column of what a value has beyond its columns."""
_MAX_DESCRIPTOR_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values, or keys, are read."""

    name: str = "bytes"
    schema: str | None = None
    """json: columns as in `CREATE TABLE`; avro: the schema as JSON. With a registry: of the columns, in the place of
    the subject's newest schema."""
    message: str | None = None
    """protobuf: the message's name."""
    descriptor: str | None = None
    """protobuf: the file that `protoc --descriptor_set_out` made."""
    registry: str | None = None
    """The URL of a schema registry, which has the schemas."""
    topics: tuple[str, ...] = ()
    """With a registry: the topics whose subjects have the schemas."""
    subject: str | None = None
    """With a registry: the subject, in the place of TOPIC-value."""
    ends_at_new: bool = False
    """With a registry: whether a query fails at a field of a later version of the subject than those of its start."""

    def __post_init__(self) -> None:
        if self.name not in FORMATS:
            raise PipelineError(f"value format {self.name}: {', '.join(FORMATS)} are possible")
        if self.registry is not None and self.name not in ("avro", "registry"):
            raise PipelineError(f"a schema registry is used with value format registry, not {self.name}")
        if self.name == "registry" and self.registry is None:
            raise PipelineError("value format registry needs the URL of a schema registry")
        if self.registry is not None and self.subject is None and len(self.topics) != 1:
            raise PipelineError(
                f"with a schema registry, one topic is loaded at a time, not {len(self.topics)}: each has a schema of "
                f"its own, and a table has one"
            )
        if self.name in ("json", "avro") and not self.schema and self.registry is None:
            raise PipelineError(f"value format {self.name} needs a schema, or with json: {INFER}")
        if self.name == "protobuf" and not (self.message and self.descriptor):
            raise PipelineError("value format protobuf needs the name of the message and the file of descriptors")

    @property
    def has_rescued(self) -> bool:
        """Whether values may have something beyond their columns."""
        return self.name not in ("bytes", "string")


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
    with settings_of(spark, {"spark.sql.caseSensitive": "true"}):  # else names that differ in case only end it
        try:
            found = reader.json(texts).schema
        except PySparkTypeError:  # Spark 4.1 takes no frame here
            found = reader.json(texts.rdd.map(itemgetter(0))).schema
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


def names_beside(column: str) -> tuple[str, str, str]:
    """Of the columns of bad bytes, the reason, and what is beyond the columns."""
    if column == "value":
        return "raw", "reason", RESCUED
    return f"{column}_raw", f"{column}_reason", f"{column}_rescued"


def with_values(records: DataFrame, value_format: ValueFormat, column: str = "value") -> DataFrame:
    """The source's records with the column `value`, or another one, decoded, and `raw`, `reason` and, but for bytes and
    text, `_rescued`; of another column with its name before these. Raises `PipelineError`, `Unavailable`."""
    from pyspark.sql import functions as f

    from kalda.pipeline.formats.faults import fault_column

    raw, why, rest = names_beside(column)
    names = [name for name in records.columns if name not in (raw, why, rest)]
    decoded = _decoded(value_format, column)
    if decoded.before:
        records = records.withColumns(dict(decoded.before))
    is_wrong = f.col(column).isNotNull() & decoded.is_bad
    bad = f.when(is_wrong, "value")
    has_times = column == "value" and "timestamp" in records.columns
    if has_times:
        bad = bad.when(f.col("timestamp").isNull(), "time")
    records = records.withColumn(_BAD, bad)
    is_good = f.col(column).isNotNull() & f.col(_BAD).isNull()
    reason = f.when(f.col(_BAD).isNotNull(), f.lit(_TIME)) if has_times else f.lit(None).cast("string")
    made = {column: f.when(is_good, decoded.value), raw: f.when(f.col(_BAD).isNotNull(), f.col(column))}
    if decoded.rescued is not None:
        made[rest] = f.when(is_good, decoded.rescued)
    if decoded.reason is not None:
        made[why] = f.coalesce(decoded.reason, reason)
        records = records.withColumns(made)
    else:
        records = records.withColumns(made)
        if decoded.fault is not None:
            reason = f.coalesce(fault_column(f.when(f.col(_BAD) == "value", f.col(raw)), decoded.fault), reason)
        records = records.select(*names, _BAD, *(name for name in made if name != column)).withColumn(why, reason)
    return records.select(*names, *(name for name in made if name not in (column, why)), why)


class _Decoded(NamedTuple):
    """What becomes of a column."""

    value: Any
    """Decoded, where it is not bad."""
    is_bad: Any
    """Whether it cannot be decoded."""
    fault: Fault | None = None
    """Says why; None where none is bad, or there is a reason."""
    rescued: Column | None = None
    """What of the value is not in `value`."""
    before: Mapping[str, Column] = MappingProxyType({})
    """Columns that have to be made first."""
    reason: Column | None = None
    """Why it is bad; None where `fault` says so."""


_MADE: Final = "_kalda_decoded"
_BAD: Final = "_kalda_bad"
_TIME: Final = "the timestamp is too far from 1970 for Spark's microseconds"


def _is_text(column: Column) -> Column:
    from pyspark.sql import functions as f

    return f.is_valid_utf8(column.cast("string"))


def _decoded(value_format: ValueFormat, column: str) -> _Decoded:
    from pyspark.sql import functions as f

    from kalda.pipeline.formats import faults

    value = f.col(column)
    if value_format.registry is not None:
        return _of_registry(value_format, column)
    match value_format.name:
        case "string":
            return _Decoded(value.cast("string"), ~_is_text(value), faults.of_text)
        case "json":
            return _of_json(str(value_format.schema), value)
        case "avro":
            from kalda.pipeline.formats.avro import AvroSchema
            from kalda.pipeline.formats.decoders import AvroValues

            return _of_decoder(AvroValues(AvroSchema(str(value_format.schema))), value)
        case "protobuf":
            from kalda.pipeline.formats.decoders import MessageValues
            from kalda.pipeline.formats.protobuf import MessageSchema

            file = Path(str(value_format.descriptor))
            try:
                files = read_bytes(file, _MAX_DESCRIPTOR_BYTES)
            except OSError as error:
                raise PipelineError(f"the file of descriptors {file} cannot be read: {error.strerror}") from None
            return _of_decoder(MessageValues(MessageSchema(files, str(value_format.message))), value)
    return _Decoded(value, f.lit(False))


def _of_json(schema: str, value: Column) -> _Decoded:
    from kalda.pipeline.formats import faults

    columns = json_columns(schema, value)
    is_bad = columns.is_bad | ~_is_text(value)
    return _Decoded(
        columns.value, is_bad, faults.of_json(struct_of(schema)), columns.rescued, parsed_columns(schema, value)
    )


def _of_decoder(decoder: Any, value: Column) -> _Decoded:
    from pyspark.sql import functions as f

    from kalda.pipeline.formats.decoders import decoded_column

    made = f.col(_MADE)  # in a step of its own: else Python would decode for each use of it
    column = decoded_column(value, decoder)
    return _Decoded(
        made["value"], made["reason"].isNotNull(), None, made["rescued"], {_MADE: column}, made["reason"]
    )  # fmt: skip


def _of_registry(value_format: ValueFormat, column: str) -> _Decoded:
    """Decoded by the schema whose id is before the value, into the newest one, or the one that was given."""
    from pyspark.sql import functions as f

    from kalda.pipeline.formats.decoders import behind_id, registered_values
    from kalda.pipeline.formats.json_values import ddl_of
    from kalda.pipeline.formats.registry import PREFIX_BYTES, subject_of

    url = str(value_format.registry)
    subject = subject_of(url, value_format.subject or f"{value_format.topics[0]}-{column}")
    if value_format.name == "avro" and subject.newest.kind != "AVRO":
        raise PipelineError(f"the subject {subject.name} has schemas of {subject.newest.kind}, not Avro")
    if subject.newest.kind == "JSON":
        body = f.substring(f.col(column), PREFIX_BYTES + 1, 2**31 - 1)
        found = _of_json(value_format.schema or ddl_of(subject.newest.text), body)
        has_prefix = (f.length(column) >= PREFIX_BYTES) & (f.substring(column, 1, 1) == f.lit(b"\0"))
        return found._replace(is_bad=~has_prefix | found.is_bad, fault=behind_id(found.fault))
    return _of_decoder(registered_values(url, subject, value_format.schema, value_format.ends_at_new), f.col(column))
