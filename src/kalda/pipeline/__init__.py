"""Pipelines between topics and tables, on Spark's own machinery: `kalda pipeline run | check | load | derive | replay |
snapshot | status`.

A pipeline is a Structured Streaming query, or a batch query, that reads the formats `kalda` and writes Spark's own file
sink, Delta, Iceberg or topics. What was read and what was written are committed by Spark's checkpoint and the sink.
Projects of `pyspark.pipelines` have an engine here: unchanged definition files run in one session, with what Spark's
own engine lacks. In definition files:

    from kalda.pipeline import connection, create_auto_cdc_flow, debezium, decoded
    from kalda.pipeline import expect, expect_or_drop, expect_or_fail, records_of

- `session`: the Spark session of a command, and which jars a format needs
- `topics`: partitions and ends of topics, from a cluster
- `files`: files beside a pipeline: bounded reads, states, locks
- `stores`: the same in object stores, without Spark
- `projects`: what a project's files define, and what is wrong with it before it runs
- `engine`: runs of projects, single queries, and what they say of themselves
- `tables`: tables of Delta: commits, MERGE, contracts, change data, rules of rows
- `formats`: values of records as columns
- `sinks`: the sinks of a project, and their options
- `jdbc`: tables of databases: each batch in one transaction, and rows since the last time
- `mirror`: topics of one cluster in another one, with the offsets of groups
- `generators`: the commands that need no project: load, derive, snapshot, redrive-topic, replay
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kalda.pipeline.formats.frames import debezium as debezium
    from kalda.pipeline.formats.frames import decoded as decoded
    from kalda.pipeline.sinks import connection as connection
    from kalda.pipeline.sinks import records_of as records_of
    from kalda.pipeline.tables.changes import create_auto_cdc_flow as create_auto_cdc_flow
    from kalda.pipeline.tables.contracts import expect as expect
    from kalda.pipeline.tables.contracts import expect_or_drop as expect_or_drop
    from kalda.pipeline.tables.contracts import expect_or_fail as expect_or_fail

_PUBLIC: Final = {
    "connection": "sinks",
    "create_auto_cdc_flow": "tables.changes",
    "debezium": "formats.frames",
    "decoded": "formats.frames",
    "expect": "tables.contracts",
    "expect_or_drop": "tables.contracts",
    "expect_or_fail": "tables.contracts",
    "records_of": "sinks",
}


def __getattr__(name: str) -> object:
    """A public name, imported at its first use: they need PySpark."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda.pipeline' has no attribute {name!r}")
    from importlib import import_module

    return vars(import_module(f"kalda.pipeline.{_PUBLIC[name]}"))[name]
