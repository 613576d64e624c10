"""Metadata logs and snapshots that Apache Kafka 4.3.1 nodes wrote, reduced to their records."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata"
NODES = ("node", "trio-1", "trio-2", "trio-3")


class LogBatch(NamedTuple):
    base_offset: int
    last_offset: int
    epoch: int
    append_timestamp_ms: int
    size_bytes: int
    is_control: bool
    records: list[VersionedRecord]


def load(node: str) -> dict[str, list[LogBatch]]:
    """Batches by file name."""
    files: dict[str, list[LogBatch]] = {}
    with gzip.open(GOLDEN / f"{node}.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            values = [] if row["control"] else [decode_metadata_record(b64decode(v)) for v in row["values"]]
            files.setdefault(row["file"], []).append(
                LogBatch(
                    row["base_offset"],
                    row["last_offset"],
                    row["epoch"],
                    row["timestamp"],
                    row["size"],
                    row["control"],
                    values,
                )
            )
    return files


def log_batches(node: str) -> list[LogBatch]:
    """The whole log, in order."""
    return [batch for name, batches in sorted(load(node).items()) if name.endswith(".log") for batch in batches]


def snapshots(node: str) -> dict[int, list[VersionedRecord]]:
    """Records by the offset after the last one that the snapshot contains."""
    return {
        int(name.split("-")[0]): [record for batch in batches for record in batch.records]
        for name, batches in load(node).items()
        if name.endswith(".checkpoint")
    }
