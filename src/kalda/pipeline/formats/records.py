"""Rows of any columns as records of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kalda.pipeline.session import PipelineError
from kalda.pipeline.tables.contracts import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def records_of(frame: DataFrame, key: str | None = None) -> DataFrame:
    """Columns `key`, `value`, `headers`, `partition` and `timestamp` as they are where there is a column `value`, else
    all columns as a JSON object, with the column that is named as the key. Raises `PipelineError`."""
    from pyspark.sql import functions as f

    if "value" in frame.columns:
        chosen = [name for name in ("key", "value", "headers", "partition", "timestamp") if name in frame.columns]
        return frame.select(*chosen)
    if key is not None and key not in frame.columns:
        raise PipelineError(f"key {key}: there are the columns {', '.join(frame.columns)}")
    value = f.to_json(f.struct(*(f.col(quoted(name)) for name in frame.columns))).cast("binary").alias("value")
    if key is None:
        return frame.select(value)
    return frame.select(f.col(quoted(key)).cast("string").cast("binary").alias("key"), value)
