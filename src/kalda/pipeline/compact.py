"""Many small files of a lake into few, as one commit.

In each directory with several small files, these are read in the order of partition and offset and written as files of
about `target_bytes`. Then one rename replaces the list of files. A reader that began before has the old list and the
old files, which stay until the next load deletes them; one that begins later has the new. A crash before the rename
leaves new files that are no part of the table; the next load deletes them too. The new files are on the disk before the
rename: else a loss of power could leave a list of empty files, and the next load would delete those that they replace.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.files import OWN, replace_text, sync
from kalda.pipeline.lake import COMPACTING, Lake, SinkFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 * 1024 * 1024
_SMALL: Final = 0.75
"""Files of less than this part of the target are put together."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What was done."""

    files_before: int = 0
    files_after: int = 0


def compact(spark: SparkSession, lake: Lake, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Put small files together. Only while the lake is locked and no query writes it."""
    entry = lake.last_entry()
    files = lake.files()
    groups = [group for group in _by_directory(files) if len(group) > 1]
    if entry is None or not groups:
        return Compacted(len(files), len(files))
    replaced: set[Path] = set()
    added: list[dict[str, Any]] = []
    for group in groups:
        small = [each for each in group if each.size_bytes < target_bytes * _SMALL]
        if len(small) > 1:
            added += _merge(spark, lake, small, target_bytes)
            replaced |= {each.path for each in small}
    if not replaced:
        return Compacted(len(files), len(files))
    kept = [dict(each.entry) for each in files if each.path not in replaced]
    lines = [json.dumps(each, separators=(",", ":")) for each in (*kept, *added)]
    # Hadoop's local file system compares a file with its checksum only where it has one.
    entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
    replace_text(entry, "\n".join(["v1", *lines]))
    return Compacted(len(files), len(kept) + len(added))


def _by_directory(files: Iterable[SinkFile]) -> list[list[SinkFile]]:
    groups: dict[Path, list[SinkFile]] = {}
    for each in files:
        groups.setdefault(each.path.parent, []).append(each)
    return list(groups.values())


def _merge(spark: SparkSession, lake: Lake, small: list[SinkFile], target_bytes: int) -> list[dict[str, Any]]:
    """New files with the rows of `small`, in the same directory; their entries in the list of files."""
    directory = small[0].path.parent
    staging = lake.path / OWN / f"{COMPACTING}{uuid.uuid4().hex}"
    count = max(1, round(sum(each.size_bytes for each in small) / target_bytes))
    rows = spark.read.parquet(*(str(each.path) for each in small))
    ordered = rows.repartitionByRange(count, "partition", "offset") if count > 1 else rows.coalesce(1)
    ordered.sortWithinPartitions("partition", "offset").write.parquet(str(staging))
    entries = []
    for path in sorted(staging.glob("*.parquet")):
        target = directory / f"compacted-{path.name}"
        sync(path)
        os.replace(path, target)
        found = target.stat()
        entries.append(
            {
                "path": target.as_uri(),
                "size": found.st_size,
                "isDir": False,
                "modificationTime": int(time.time() * 1000),
                "blockReplication": 1,
                "blockSize": small[0].entry.get("blockSize", 33554432),
                "action": "add",
            }
        )
    sync(directory)
    shutil.rmtree(staging)
    return entries
