"""What the checkpoint of a Structured Streaming query says: the offsets of its batches, and which are committed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from kalda.base.ids import TopicPartition
from kalda.pipeline.files import Place, times_in

_READS: Final = 16
"""How many files are read at once."""
_END_OF_TIMES_MS: Final = 253_402_300_800_000
"""The year 10000."""


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """One batch: when it was planned, and where each of the query's sources ends in it."""

    number: int
    planned_ms: int
    committed_ms: int | None
    """By the file's time; None where the batch has not ended."""
    ends: tuple[Mapping[TopicPartition, int], ...]
    """For each source, the offsets after its last records; empty for a source that is no topic."""


class Checkpoint:
    """A checkpoint's directory, which a running query may be writing. In a store, all methods raise `Unavailable`."""

    def __init__(self, path: Place) -> None:
        self.path = path

    @property
    def query_id(self) -> str | None:
        try:
            found: str = json.loads((self.path / "metadata").read_text(encoding="utf-8"))["id"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found

    def batches(self, last: int = 20) -> list[CheckpointBatch]:
        """The last batches, oldest first."""
        written = times_in(self.path / "commits")
        with ThreadPoolExecutor(_READS) as threads:  # a store answers many questions as fast as one
            found = threads.map(lambda number: self._batch(number, written), self._numbers("offsets")[-last:])
            return [batch for batch in found if batch is not None]

    def committed(self) -> dict[TopicPartition, int]:
        """Up to which offset each partition has been processed."""
        numbers = self._numbers("commits")
        batch = self._batch(numbers[-1], {}) if numbers else None
        found: dict[TopicPartition, int] = {}
        for ends in batch.ends if batch is not None else ():
            found.update(ends)
        return found

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in times_in(self.path / folder) if _is_number(name))

    def _batch(self, number: int, written: Mapping[str, float]) -> CheckpointBatch | None:
        file = self.path / "offsets" / str(number)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        # v1, or v2 and the names of sources, then the metadata, then a line a source
        parsed = [_json(line) for line in lines[1:]]
        described = next((each for each in parsed if isinstance(each, dict) and "batchTimestampMs" in each), {})
        ends = tuple(
            _offsets(each) for each in parsed if each is not described and (isinstance(each, dict) or each is None)
        )
        committed = int(written[str(number)] * 1000) if str(number) in written else None
        return CheckpointBatch(number, milliseconds(described.get("batchTimestampMs")), committed, ends)


def _is_number(text: str) -> bool:
    """Of a batch or a partition."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def milliseconds(value: object) -> int:
    """A time of a batch; 0 where it is none that a calendar has."""
    return value if isinstance(value, int) and 0 <= value < _END_OF_TIMES_MS else 0


def _offsets(line: Any) -> dict[TopicPartition, int]:
    """Kafka's own form: {"topic": {"0": 12}}."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in line.items() if isinstance(line, dict) else ():
        for number, offset in partitions.items() if isinstance(partitions, dict) else ():
            if _is_number(number) and isinstance(offset, int):
                found[TopicPartition(topic, int(number))] = offset
    return found


def offsets_of(text: object) -> dict[TopicPartition, int]:
    """The offsets in a report of a query's progress, which has them as JSON."""
    return _offsets(_json(text) if isinstance(text, str) else text)
