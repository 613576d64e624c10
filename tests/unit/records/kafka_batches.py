"""Apache Kafka 4.3.1's own batches, segments and validation results, from `tests/golden/records`."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

from kalda.records.builder import Record

FOLDER = Path(__file__).parents[2] / "golden" / "records"


def lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def unbase64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def expected_records(rows: list[dict[str, Any]]) -> list[Record]:
    return [
        Record(
            row["offset"],
            row["timestamp"],
            unbase64(row["key"]),
            unbase64(row["value"]),
            tuple((key, unbase64(value)) for key, value in row.get("headers", [])),
        )
        for row in rows
    ]
