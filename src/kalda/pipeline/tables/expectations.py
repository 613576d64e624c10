"""Expectations: what must hold of each row of a flow, as SQL, and what happens to rows where it does not.

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
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.contracts import CONTRACT, JSON_TIMES, Fit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
