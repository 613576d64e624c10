"""Which offsets a DataFrame reads, taken from its plan: to store them with the rows, in one transaction of another
system, and to continue from there.

The rows of a batch that is run again are those of the same offsets, so a system that stores both at once has each row
once, whatever crashes. In `foreachBatch`, a frame has the offsets of its micro-batch. A batch query has its offsets
from when it is first planned; a frame that is derived from another one may be planned anew, and "latest" is then a
later offset. `reading` gives the options that read exactly these ranges.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kalda.base.ids import TopicPartition
from kalda.spark.partitions import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFFSETS = ("endOffset", "latestOffset")
_ADAPTIVE = "AdaptiveSparkPlanExec"


def offset_ranges_of(frame: DataFrame) -> list[OffsetRange]:
    """The ranges that the frame reads by the format "kalda", one for each partition, sorted. Raises `ValueError` where
    it reads none, or belongs to a Spark Connect session, whose plan is on the server."""
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        raise ValueError(
            "the plan of a Spark Connect frame is on the server: take the smallest and the largest offset of each "
            "partition from its rows instead"
        )
    execution = plan.queryExecution()
    found = [*_of_plan(execution.sparkPlan())]
    if not found:
        raise ValueError('the frame reads nothing by format "kalda", or its plan has been cut off (checkpoint, cache)')
    return _joined(one for one in found if one is not None)


def behind_latest(source: Any) -> dict[str, float]:
    """See `kalda.spark.offsets_behind`."""
    found = source if isinstance(source, Mapping) else {name: getattr(source, name) for name in _OFFSETS}
    read, latest = (_position(found[name]) for name in _OFFSETS)
    behind = [max(0, end - read.get(partition, 0)) for partition, end in latest.items()]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _position(text: str | Mapping[str, Any] | None) -> Mapping[TopicPartition, int]:
    from kalda.spark.source import from_json

    given = json.loads(text) if isinstance(text, str) else text
    return from_json(given or {}).position


def reading(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Options that read exactly these ranges."""
    given = list(ranges)
    if not given:
        raise ValueError("there is no range to read")
    return {
        "assign": json.dumps(_by_topic(given, lambda one: one.partition, is_list=True)),
        "startingOffsets": json.dumps(_by_topic(given, lambda one: one.start)),
        "endingOffsets": json.dumps(_by_topic(given, lambda one: one.end)),
    }


def starting_after(stored: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> str:
    """The value of `startingOffsets` that continues at stored offsets: by topic and partition, the next to read."""
    return json.dumps(_by_topic([OffsetRange(*each, at, at) for each, at in stored.items()], lambda one: one.start))


def _by_topic(ranges: Iterable[OffsetRange], value_of: Any, *, is_list: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in sorted(ranges):
        if is_list:
            found.setdefault(one.topic, []).append(value_of(one))
        else:
            found.setdefault(one.topic, {})[str(one.partition)] = value_of(one)
    return found


def _joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """One range for each partition, of the pieces that its tasks read."""
    found: dict[tuple[str, int], OffsetRange] = {}
    for one in ranges:
        other = found.get((one.topic, one.partition), one)
        found[one.topic, one.partition] = one._replace(start=min(one.start, other.start), end=max(one.end, other.end))
    return sorted(found.values())


def _of_plan(plan: Any) -> Iterator[OffsetRange | None]:
    """The ranges of a physical plan, and None for each scan that has no range."""
    name = plan.getClass().getSimpleName()
    if name == _ADAPTIVE:
        yield from _of_plan(plan.inputPlan())
        return
    if name in ("BatchScanExec", "MicroBatchScanExec"):
        yield from _of_inputs(plan.inputPartitions())
    elif name == "RDDScanExec":
        yield from _of_rdd(plan.rdd(), set())
    children = plan.children()
    for index in range(children.size()):
        yield from _of_plan(children.apply(index))


def _of_rdd(rdd: Any, seen: set[int]) -> Iterator[OffsetRange | None]:
    """In `foreachBatch` the frame's plan is an RDD: its ancestor reads the source."""
    if rdd.id() in seen:
        return
    seen.add(rdd.id())
    if rdd.getClass().getSimpleName() == "DataSourceRDD":
        partitions = rdd.partitions()
        if not len(partitions):
            yield None
        for partition in partitions:
            methods = {method.getName() for method in partition.getClass().getMethods()}
            if "inputPartitions" in methods:  # up to Spark 4.2
                yield from _of_inputs(partition.inputPartitions())
            else:
                given = partition.inputPartition()
                is_option = given.getClass().getSimpleName() in ("Some", "None$")
                yield from _of_inputs(given.toList()) if is_option else _of_input(given)
        return
    dependencies = rdd.dependencies()
    for index in range(dependencies.size()):
        yield from _of_rdd(dependencies.apply(index).rdd(), seen)


def _of_inputs(inputs: Any) -> Iterator[OffsetRange | None]:
    for index in range(inputs.size()):
        yield from _of_input(inputs.apply(index))


def _of_input(one: Any) -> Iterator[OffsetRange | None]:
    # PythonInputPartition of a batch, PythonStreamingInputPartition of a stream; others are not of Python sources.
    if not one.getClass().getSimpleName().startswith("Python"):
        return
    partition = pickle.loads(bytes(one.pickedPartition()))
    if partition is None or partition.value is None:  # Spark's own, where no range was planned
        yield None
    elif type(partition).__module__ == "kalda.spark.source":
        yield from (OffsetRange(*each) for each in partition.value)
