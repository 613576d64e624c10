"""`spark.read.format("kalda-segments")`: the files of log directories as rows, without a node.

    spark.read.format("kalda-segments").load("/var/lib/kalda")

Options: `path` (or `load`'s argument; several with commas between), `view`, `topics`, `isolationLevel`, `mode`,
`includeHeaders`, `replicas`, `includeDeletedRecords`, `maxSplitBytes`; see `read_segment_options`. Directories of Kalda
and of Apache Kafka are the same. The columns of records are those of the source `kalda`, and `corrupt`; a schema may
name more (`EXTRA_TYPES`) or fewer.

Conditions of a query do not reduce what is read: PySpark keeps the reader that a condition has narrowed for later
queries of the same frame that have none. The option `topics` does.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from kalda.base.errors import CorruptRecord
from kalda.base.ids import TopicPartition
from kalda.broker.process.disk import RealDisk
from kalda.records.batch import BatchHeader
from kalda.records.control import ControlType, read_control_batch
from kalda.spark.options import OptionError
from kalda.spark.partitions import Narrowing
from kalda.spark.segment_batches import Damage, Run, read_piece
from kalda.spark.segment_files import MAX_OFFSET, SegmentPiece, find_replicas, plan_tasks
from kalda.spark.source import ALL_COLUMNS, COLUMNS
from kalda.spark.workers import one_sentence
from kalda.storage.file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, offset_of
from kalda.storage.log.producer_snapshot import read_snapshot
from kalda.storage.log.txn_index import decode_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

RECORDS: Final = "records"
VIEW_NAMES: Final = (
    RECORDS, "batches", "control", "offsets", "groups", "transactions", "metadata", "producers", "aborted",
)  # fmt: skip
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_CORRUPT: Final = StructField("corrupt", StringType())
EXTRAS: Final = StructType(
    [
        _CORRUPT,
        StructField("logDir", StringType()),
        StructField("segment", StringType()),
        StructField("position", LongType()),
        StructField("producerId", LongType()),
        StructField("producerEpoch", IntegerType()),
        StructField("baseSequence", IntegerType()),
        StructField("leaderEpoch", IntegerType()),
        StructField("transactional", BooleanType()),
        StructField("compression", StringType()),
    ]
)
MAX_SPLIT_BYTES: Final = 128 * 1024 * 1024
_ROWS: Final = 10_000
NAMES: Final = (
    "path", "paths", "view", "topics", "isolationLevel", "mode", "includeHeaders", "replicas",
    "includeDeletedRecords", "maxSplitBytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    paths: tuple[str, ...]
    view: str = RECORDS
    topics: frozenset[str] | None = None
    read_committed: bool = False
    """Leave out aborted transactions, and what begins at or after the first open one."""
    mode: str = MODES[0]
    """What damage becomes: a row, nothing, or a failure of the query."""
    include_headers: bool = False
    all_replicas: bool = False
    """Each replica of a partition that several of the directories have, instead of the longest one."""
    deleted_records: bool = False
    """Also records before the log start offset, which a client has deleted, as long as the files have them."""
    max_split_bytes: int = MAX_SPLIT_BYTES


def read_segment_options(given: Mapping[str, str]) -> SegmentOptions:
    """Parse the options; upper and lower case of names are equal. Raises `OptionError`."""
    values = {name.lower(): value for name, value in given.items()}
    known = {name.lower(): name for name in NAMES}
    for name, value in values.items():
        if name not in known:
            raise OptionError(name, value, f"there is no such option; there are {', '.join(NAMES)}")

    def choice(name: str, choices: Sequence[str]) -> str:
        text = values.get(name.lower(), choices[0])
        found = next((one for one in choices if one.lower() == text.strip().lower()), None)
        if found is None:
            raise OptionError(name, text, f"{', '.join(choices)} are possible")
        return found

    text = values.get("maxsplitbytes", str(MAX_SPLIT_BYTES)).strip()
    if not text.isdecimal() or not 0 < len(text) < 19 or int(text) < 1:
        raise OptionError("maxSplitBytes", text, "a whole number from 1 is expected")
    topics = [name.strip() for name in values.get("topics", "").split(",") if name.strip()]
    return SegmentOptions(
        paths=_paths(values),
        view=choice("view", VIEW_NAMES),
        topics=frozenset(topics) if topics else None,
        read_committed=choice("isolationLevel", ("read_uncommitted", "read_committed")) == "read_committed",
        mode=choice("mode", MODES),
        include_headers=choice("includeHeaders", ("false", "true")) == "true",
        all_replicas=choice("replicas", ("longest", "all")) == "all",
        deleted_records=choice("includeDeletedRecords", ("false", "true")) == "true",
        max_split_bytes=int(text),
    )


def _paths(values: Mapping[str, str]) -> tuple[str, ...]:
    paths = [*_several(values.get("paths", "")), *values.get("path", "").split(",")]
    found = tuple(path.strip().removeprefix("file://").removeprefix("file:") for path in paths if path.strip())
    if not found:
        raise OptionError("path", values.get("path"), "a log directory is expected, or several with commas between")
    return found


def _several(text: str) -> list[str]:
    """Paths with commas between, or a JSON list of them, as Spark gives it for `load([...])`."""
    if not text.lstrip().startswith("["):
        return text.split(",")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise OptionError("paths", text, "paths with commas between are expected, or a JSON list of them")
    return found


def register_segments(spark: SparkSession) -> None:
    """Register the format in this session."""
    spark.dataSource.register(SegmentSource)


class SegmentSource(DataSource):
    """Files of log directories as a table."""

    @classmethod
    def name(cls) -> str:
        return "kalda-segments"

    def schema(self) -> StructType:
        with one_sentence():
            options = read_segment_options(self.options)
            if options.view == RECORDS:
                return StructType([*(ALL_COLUMNS if options.include_headers else COLUMNS).fields, _CORRUPT])
            from kalda.spark.segment_views import VIEWS

            return VIEWS[options.view].schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_sentence():
            options = read_segment_options(self.options)
            return SegmentReader(options, _check_schema(options, schema))


def _check_schema(options: SegmentOptions, schema: StructType) -> StructType:
    if options.view == RECORDS:
        known = StructType([*ALL_COLUMNS.fields, *EXTRAS.fields])
    else:
        from kalda.spark.segment_views import VIEWS

        known = VIEWS[options.view].schema
    for one in schema:
        if one.name not in known.names:
            raise ValueError(
                f"schema: view {options.view} has no column {one.name}; there are {', '.join(known.names)}"
            )
        if known[one.name].dataType != one.dataType:
            raise ValueError(f"schema: column {one.name} is {known[one.name].dataType.simpleString()}; cast it later")
    return schema


class SegmentReader(DataSourceReader):
    """`partitions` plans, once in one process; `read` is called in the tasks."""

    def __init__(self, options: SegmentOptions, schema: StructType) -> None:
        self.options = options
        self.columns = schema
        self.narrowing = Narrowing(topics=options.topics)

    def partitions(self) -> Sequence[InputPartition]:
        with one_sentence():
            options = self.options
            narrowing = self.narrowing
            if options.view != RECORDS:
                from kalda.spark.segment_views import VIEWS

                view = VIEWS[options.view]
                if view.topic is not None:
                    narrowing = Narrowing(topics=frozenset((view.topic,)))
            replicas = find_replicas(
                options.paths,
                narrowing,
                all_replicas=options.all_replicas,
                deleted_records=options.deleted_records or options.view != RECORDS,
            )
            if options.view != RECORDS and view.suffix != ".log":
                directories = [(one.partition, one.log_dir, one.path) for one in replicas]
                return [InputPartition(tuple(map(tuple, _files(directories, view.suffix))))]
            tasks = plan_tasks(replicas, narrowing, options.max_split_bytes)
            if options.view == "metadata":
                directories = [(one.partition, one.log_dir, one.path) for one in replicas]
                tasks += [[snapshot] for snapshot in _files(directories, ".checkpoint")]
            return [InputPartition(tuple(map(tuple, pieces))) for pieces in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        planned = None if partition is None else partition.value  # None where there are no segments
        pieces = [SegmentPiece(*piece) for piece in planned or ()]
        kept = _Kept(self.options.read_committed)
        yield from self._records(pieces, kept) if self.options.view == RECORDS else self._rows(pieces, kept)

    def _records(self, pieces: list[SegmentPiece], kept: _Kept) -> Iterator[pa.RecordBatch]:
        from kalda.spark.segment_batches import Damage, RecordColumns, read_piece
        from kalda.spark.workers import exempt_modules

        exempt_modules()
        columns = RecordColumns([(one.name, one.nullable) for one in self.columns])
        for piece in pieces:
            first = piece.log_start_offset
            keeps = kept.of(piece)
            keep = keeps.keeps if keeps is not None else None
            for found in read_piece(piece):
                for batch in (found,) if isinstance(found, Damage) else columns.of(found, piece, first, None, keep):
                    if not isinstance(batch, Damage):
                        yield batch
                    elif batch.offset >= first and self._reports(batch, piece):
                        yield columns.damage(batch, piece)

    def _reports(self, damage: Damage, piece: SegmentPiece) -> bool:
        """Whether damage becomes a row. Raises `ValueError` in the mode FAILFAST."""
        from kalda.spark.segment_batches import describe

        if self.options.mode == "FAILFAST":
            raise ValueError(f"{describe(damage, piece)}. Mode PERMISSIVE reads what is not damaged")
        return self.options.mode == "PERMISSIVE"

    def _rows(self, pieces: list[SegmentPiece], kept: _Kept) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from kalda.spark.segment_views import VIEWS

        schema = to_arrow_schema(self.columns, timezone="UTC")
        view = VIEWS[self.options.view]
        for piece in pieces:
            keeps = kept.of(piece)
            rows = view.rows(piece, keeps.keeps if keeps is not None else None)
            while some := list(islice(rows, _ROWS)):
                wrong = [row["corrupt"] for row in some if row.get("corrupt")]
                if wrong and self.options.mode == "FAILFAST":
                    raise ValueError(f"{wrong[0]}. Mode PERMISSIVE reads what is not damaged")
                if wrong and self.options.mode == "DROPMALFORMED":
                    some = [row for row in some if not row.get("corrupt")]
                yield pa.RecordBatch.from_pylist(some, schema=schema)


class _Kept:
    """The isolation of the partitions of one task, each found once."""

    def __init__(self, read_committed: bool) -> None:
        self._read_committed = read_committed
        self._found: dict[str, Isolation] = {}

    def of(self, piece: SegmentPiece) -> Isolation | None:
        if not self._read_committed:
            return None
        directory = os.path.dirname(piece.path)
        if directory not in self._found:
            self._found = {directory: Isolation(directory)}
        return self._found[directory]


def _files(directories: list[tuple[TopicPartition, str, str]], suffix: str) -> list[SegmentPiece]:
    """The files of one kind in partitions' directories."""
    from kalda.storage.file_names import offset_of

    found = []
    for partition, log_dir, directory in directories:
        for name in sorted(os.listdir(directory)):
            path = f"{directory}/{name}"
            if suffix == ".checkpoint":  # OFFSET-EPOCH.checkpoint; the offsets of its batches begin at 0
                base = 0 if offset_of(name.partition("-")[0]) is not None else None
            else:
                base = offset_of(name)
            if base is not None and name.endswith(suffix):
                found.append(SegmentPiece(*partition, log_dir, path, base, 0, os.path.getsize(path), 0))
    return found


# Which batches of a partition's directory a read_committed consumer would get.
#
# Aborted transactions are in the `.txnindex` files. The last stable offset is on no disk: it is found from the latest
# producer snapshot that can be read and the batches after it, or from all batches where there is none. The same walk
# finds aborted transactions whose index entry a crash has lost.


class Isolation:
    """The aborted transactions of one partition, and its last stable offset."""

    def __init__(self, directory: str) -> None:
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """First and last offset of each aborted transaction, by producer id, in order."""
        self.last_stable_offset = MAX_OFFSET
        """Where an open transaction begins; no batch from there on is returned."""
        names = sorted(os.listdir(directory))
        for name in names:
            if name.endswith(TXN_INDEX_SUFFIX):
                with open(f"{directory}/{name}", "rb") as file:
                    for _, txn in decode_entries(file.read()):
                        self._add(txn.producer_id, txn.first_offset, txn.last_offset)
        start, ongoing = _latest_snapshot(directory, names)
        self._walk(directory, names, start, ongoing)
        if ongoing:
            self.last_stable_offset = min(ongoing.values())
        for spans in self._aborted.values():
            spans.sort()

    def keeps(self, header: BatchHeader) -> bool:
        if header.base_offset >= self.last_stable_offset:
            return False
        spans = self._aborted.get(header.producer_id) if header.is_transactional else None
        if not spans:
            return True
        at = bisect_right(spans, (header.base_offset, MAX_OFFSET)) - 1
        return at < 0 or spans[at][1] < header.base_offset

    def _add(self, producer_id: int, first: int, last: int) -> None:
        spans = self._aborted.setdefault(producer_id, [])
        if (first, last) not in spans[-4:]:
            spans.append((first, last))

    def _walk(self, directory: str, names: list[str], start: int, ongoing: dict[int, int]) -> None:
        """Apply the batches from offset `start` on to the open transactions."""
        bases = [(offset_of(name) or 0, name) for name in names if name.endswith(LOG_SUFFIX)]
        for (base, name), following in zip(bases, [*(base for base, _ in bases[1:]), MAX_OFFSET], strict=True):
            if following <= start:
                continue
            path = f"{directory}/{name}"
            for found in read_piece(SegmentPiece("", 0, "", path, base, 0, os.path.getsize(path), 0)):
                if not isinstance(found, Damage):
                    self._apply(found, start, ongoing)

    def _apply(self, run: Run, start: int, ongoing: dict[int, int]) -> None:
        at = 0
        for header in run.headers:
            if header.is_transactional and header.base_offset >= start:
                if not header.is_control:
                    ongoing.setdefault(header.producer_id, header.base_offset)
                else:
                    first = ongoing.pop(header.producer_id, None)
                    if first is not None and _is_abort(run.buffer, at, header):
                        self._add(header.producer_id, first, header.last_offset)
            at += header.size_bytes


def _is_abort(buffer: memoryview, at: int, header: BatchHeader) -> bool:
    try:
        return any(record.type is ControlType.ABORT for record in read_control_batch(buffer, at, header))
    except CorruptRecord:
        return False


def _latest_snapshot(directory: str, names: list[str]) -> tuple[int, dict[int, int]]:
    """The offset of the latest producer snapshot that can be read, and where its open transactions begin."""
    for name in reversed([name for name in names if name.endswith(SNAPSHOT_SUFFIX)]):
        try:
            states = read_snapshot(RealDisk(), f"{directory}/{name}")
        except (CorruptRecord, OSError):
            continue
        open_ones = {
            state.producer_id: state.txn_first_offset
            for state in states
            if state.txn_first_offset is not None and state.txn_first_offset >= 0
        }
        return offset_of(name) or 0, open_ones
    return 0, {}
