"""What is asked of the rows of a flow before its table takes them: columns that fit, and rules that hold.

A schema contract says what happens where rows have other columns than their table.

- `evolve` (default): new columns are added to the table, and columns become wider (int to bigint, float to double).
  A column whose type cannot hold the new values is refused.
- `freeze`: the table stays as it is. Rows with a value that it has no place for go to quarantine.
- `rescue`: the table stays as it is, with one more column `_rescued`: what it has no place for, as JSON.

An expectation is a rule of rows, as SQL, and says what happens to rows where it does not hold.

    from kalda.pipeline import expect, expect_or_drop, expect_or_fail

    @dp.table
    @expect_or_drop("a total", "total >= 0")
    def orders(): ...

or in `table_properties`, and so in SQL: `'kalda.expect_or_drop.a total' = 'total >= 0'`. A condition that is null does
not hold. `expect` counts such rows, `expect_or_drop` puts them into the table's quarantine, `expect_or_fail` fails the
flow before anything of the batch is written. In Spark's own engine the decorators leave rows out or fail, and count
nothing. On a temporary view they do the same in Kalda's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from operator import or_
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pyspark.sql.types import (
    ArrayType,
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
)

from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

T = TypeVar("T", bound=DataType)
CONTRACT: Final = "kalda.schema.contract"
CONTRACTS: Final = ("evolve", "freeze", "rescue")
RESCUED: Final = "_rescued"
JSON_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How rows that become JSON have times: Spark's own formats leave out what is below a millisecond."""
_INTEGERS: Final = (ByteType(), ShortType(), IntegerType(), LongType())
_DIGITS: Final[dict[DataType, int]] = {ByteType(): 3, ShortType(): 5, IntegerType(): 10, LongType(): 19}


@dataclass(frozen=True, slots=True)
class Difference:
    """How a frame differs from its table. Names are compared as Spark does: without case."""

    new: tuple[StructField, ...]
    """Columns that the table does not have, also within objects."""
    wider: tuple[StructField, ...]
    """Columns whose type holds all values of the table's."""
    other: tuple[StructField, ...]
    """Columns of another type, which does not."""

    @property
    def text(self) -> str:
        parts = (("new", self.new), ("wider", self.wider), ("of another type", self.other))
        return ", ".join(
            f"{field.name} {field.dataType.simpleString()} is {word}" for word, all_ in parts for field in all_
        )


def difference(table: StructType, frame: StructType) -> Difference:
    known = {field.name.lower(): field for field in table.fields}
    new: list[StructField] = []
    wider: list[StructField] = []
    other: list[StructField] = []
    for field in frame.fields:
        there = known.get(field.name.lower())
        if there is None or _adds_within(there.dataType, field.dataType):
            new.append(field)
        elif not holds(there.dataType, field.dataType):
            (wider if holds(field.dataType, there.dataType) else other).append(field)
    return Difference(tuple(new), tuple(wider), tuple(other))


def holds(wide: DataType, narrow: DataType) -> bool:
    """Whether a column of the first type has place for all values of the second one. The widenings are Delta's."""
    if wide == narrow or wide.simpleString() == narrow.simpleString():
        return True
    if isinstance(wide, StructType) and isinstance(narrow, StructType):
        known = {field.name.lower(): field.dataType for field in wide.fields}
        return all(
            field.name.lower() in known and holds(known[field.name.lower()], field.dataType) for field in narrow.fields
        )
    if narrow in _INTEGERS and wide in _INTEGERS:
        return _INTEGERS.index(wide) > _INTEGERS.index(narrow)
    if isinstance(wide, DoubleType):
        return isinstance(narrow, FloatType | ByteType | ShortType | IntegerType)
    if isinstance(wide, DecimalType):
        before = wide.precision - wide.scale
        if isinstance(narrow, DecimalType):
            return wide.scale >= narrow.scale and before >= narrow.precision - narrow.scale
        return narrow in _DIGITS and before >= _DIGITS[narrow]
    return isinstance(wide, TimestampNTZType) and isinstance(narrow, DateType)


def _adds_within(table: DataType, frame: DataType) -> bool:
    """Whether an object has fields more, and else what the table has."""
    if not isinstance(table, StructType) or not isinstance(frame, StructType):
        return False
    found = difference(table, frame)
    return bool(found.new) and not found.wider and not found.other


def nullable(kind: T) -> T:
    """The type without NOT NULL, whatever its depth: what a query cannot be null in today, it may be tomorrow."""
    if isinstance(kind, StructType):
        fields = [StructField(each.name, nullable(each.dataType), True, each.metadata) for each in kind.fields]
        return cast(T, StructType(fields))
    if isinstance(kind, ArrayType):
        return cast(T, ArrayType(nullable(kind.elementType), True))
    if isinstance(kind, MapType):
        return cast(T, MapType(kind.keyType, nullable(kind.valueType), True))
    return kind


def check_contract(contract: str, place: str) -> str:
    if contract not in CONTRACTS:
        raise PipelineError(f"{place}: {CONTRACT} is {contract!r}; there are {', '.join(CONTRACTS)}")
    return contract


def with_rescued(schema: StructType) -> StructType:
    """The columns of a table whose contract is `rescue`."""
    return schema if RESCUED in schema.names else StructType([*schema.fields, StructField(RESCUED, StringType())])


@dataclass(frozen=True, slots=True)
class Fit:
    """How rows of a frame become rows of a table that stays as it is."""

    columns: tuple[Column, ...]
    misfit: Column
    """Whether a row has something that the table has no place for. Such a row has null there."""
    drops: bool
    """Whether such rows go to quarantine; else the rest is in the column `_rescued`."""


def fit(frame: DataFrame, table: StructType, contract: str) -> Fit | None:
    """None where the frame's columns are the table's, or the table becomes as the frame is."""
    from pyspark.sql import functions as f

    found = difference(table, frame.schema)
    misfits = (*found.new, *found.wider, *found.other)
    if contract == "evolve" or not misfits:
        return None
    types = {field.name.lower(): field.dataType for field in table.fields}
    lost: dict[str, Column] = {}
    columns: list[Column] = []
    for field in frame.schema.fields:
        column = f.col(quoted(field.name))
        if field.name == RESCUED and contract == "rescue":
            continue
        if field not in misfits:
            columns.append(column)
            continue
        lost[field.name] = column
        kind = types.get(field.name.lower())
        if kind is not None and not isinstance(kind, StructType) and not isinstance(field.dataType, StructType):
            cast = column.try_cast(kind)
            columns.append(cast.alias(field.name))
            # A value that comes back unchanged was held.
            lost[field.name] = f.when(~cast.try_cast(field.dataType).eqNullSafe(column), column)
    misfit = f.lit(False)
    for column in lost.values():
        misfit = misfit | column.isNotNull()
    if contract == "rescue":
        rescued = (
            f.col(RESCUED) if RESCUED in frame.columns else f.lit(None).cast("string")
        )  # by the decoding of a value
        parts = (*(column.alias(name) for name, column in lost.items()), rescued.alias(RESCUED))
        columns.append(f.when(misfit, f.to_json(f.struct(*parts), JSON_TIMES)).otherwise(rescued).alias(RESCUED))
    return Fit(tuple(columns), misfit, contract == "freeze")


def quoted(name: str) -> str:
    """The name as a part of an expression, with dots and spaces that it may have."""
    return "`" + name.replace("`", "``") + "`"


# -- expectations

Function = Callable[[], Any]
_ACTIONS: Final = ("expect", "expect_or_drop", "expect_or_fail")
_MISFIT: Final = f"{CONTRACT} = freeze"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One rule of a flow."""

    name: str
    condition: str
    action: str
    """One of `expect`, `expect_or_drop`, `expect_or_fail`."""

    def fails(self) -> Column:
        from pyspark.sql import functions as f

        return ~f.coalesce(f.expr(self.condition).cast("boolean"), f.lit(False))


class ExpectationFailed(PipelineError):
    """Rows of a batch break an `expect_or_fail`."""


def _decorator(action: str, name: str, condition: str) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        if not callable(function):
            raise PipelineError(f"@{action}({name!r}, ...) stands below @dp.table and the like, not above")
        expectations = (Expectation(name, condition, action), *getattr(function, "expectations", ()))
        unchecked = getattr(function, "unchecked", function)

        @wraps(unchecked)
        def checked() -> Any:
            return _applied(unchecked(), expectations)

        vars(checked).update(expectations=expectations, unchecked=unchecked)
        return checked

    return decorate


def expect(name: str, condition: str) -> Callable[[Function], Function]:
    """Count the rows of a flow where a condition (SQL) does not hold."""
    return _decorator("expect", name, condition)


def expect_or_drop(name: str, condition: str) -> Callable[[Function], Function]:
    """Put the rows of a flow where a condition (SQL) does not hold into the table's quarantine."""
    return _decorator("expect_or_drop", name, condition)


def expect_or_fail(name: str, condition: str) -> Callable[[Function], Function]:
    """Fail a flow where a condition (SQL) does not hold of a row."""
    return _decorator("expect_or_fail", name, condition)


def _applied(frame: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """The frame of another engine: without counts and quarantine."""
    from pyspark.sql import functions as f

    for each in expectations:
        if each.action == "expect_or_drop":
            frame = frame.where(~each.fails())
        elif each.action == "expect_or_fail":
            failure = f.raise_error(f"expectation {each.name} fails: {each.condition}").cast("boolean")
            frame = frame.where(f.when(each.fails(), failure).otherwise(f.lit(True)))
    return frame


def expectations_of(function: Function | None, properties: Mapping[str, str]) -> list[Expectation]:
    """Those of the decorators of a function, and of its table's properties."""
    found = list(getattr(function, "expectations", ()))
    for key, condition in properties.items():
        action, dot, name = key.removeprefix("kalda.").partition(".")
        if key.startswith("kalda.expect") and dot:
            if action not in _ACTIONS:
                raise PipelineError(f"table property {key}: there are kalda.{', kalda.'.join(_ACTIONS)}")
            found.append(Expectation(name, condition, action))
    return found


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of a batch in two parts."""

    good: DataFrame
    bad: DataFrame | None
    """Rows for quarantine: flow, batch, moment, reasons, and the row as JSON."""
    counts: Mapping[str, int]
    """By rule: rows where it does not hold."""


def judge(frame: DataFrame, expectations: Sequence[Expectation], fit: Fit | None, flow: str, batch: int) -> Judged:
    """Divide a batch, which is read several times. `fit`: of a table that keeps its columns. Raises
    `ExpectationFailed`."""
    from pyspark.sql import functions as f

    fails = {each.name: each.fails() for each in expectations}
    dropping = {each.name: fails[each.name] for each in expectations if each.action == "expect_or_drop"}
    if fit is not None and fit.drops:
        fails[_MISFIT] = dropping[_MISFIT] = fit.misfit
    counts: dict[str, int] = {}
    if fails:
        sums = [f.count_if(column) for column in fails.values()]
        # Java's own row: PySpark's way to bring rows here is a socket, which a busy machine opens too late.
        row = frame.agg(*sums)._jdf.head()
        counts = {name: int(row.getLong(at)) for at, name in enumerate(fails)}
    for each in expectations:
        if each.action == "expect_or_fail" and counts[each.name]:
            raise ExpectationFailed(
                f"expectation {each.name} ({each.condition}) fails for {counts[each.name]:,} rows of batch {batch}; "
                f"nothing of the batch is written"
            )
    bad = None
    good = frame
    if any(counts[name] for name in dropping):
        is_bad = reduce(or_, dropping.values())
        names = f.array(*(f.when(column, f.lit(name)) for name, column in dropping.items()))
        bad = frame.where(is_bad).select(
            f.lit(flow).alias("flow"),
            f.lit(batch).cast("bigint").alias("batch"),
            f.current_timestamp().alias("moment"),
            f.array_compact(names).alias("reasons"),
            f.to_json(f.struct(*frame.columns), JSON_TIMES).alias("row"),
        )
        good = frame.where(~is_bad)
    return Judged(good if fit is None else good.select(*fit.columns), bad, counts)
