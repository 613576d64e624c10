"""Makes the files in this directory from full dumps of Apache Kafka's schemas and golden bytes.

    python tests/golden/protocol/reduce.py DUMP-4.3.1 DUMP-4.4.0

A dump has `schemas/`, `errors.json` and `golden/`. Of the frames, these are kept: every version with all fields set,
and with all nullable fields null; extreme values in a message's first and last version of that release; unknown tags in
its last version. All records are kept. What both releases wrote alike is kept once. Layouts, API keys and error codes
are those of the last release, which has all of the earlier ones. The same dumps always give the same bytes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIELD_KEYS = ("json", "versions", "nullable_versions", "tag", "tagged_versions", "default", "ignorable")
API_KEYS = ("api_key", "enum", "name", "lowest", "highest", "latest_version_unstable", "listeners", "forwardable")
ERROR_KEYS = ("code", "name", "retriable", "invalid_metadata")
RECORD_KEYS = ("record", "framing", "variant", "type", "version", "key_hex", "hex", "key", "value")


def main(dumps: list[Path]) -> None:
    frames = [reduced_frames(read_lines(dump / "golden" / "frames.jsonl.gz")) for dump in dumps]
    write_lines("frames.jsonl.gz", merged(frames, ("api", "kind", "version", "variant")))
    records = [
        [{key: row[key] for key in RECORD_KEYS if key in row} for row in read_lines(dump / "golden/records.jsonl.gz")]
        for dump in dumps
    ]
    write_lines("records.jsonl.gz", merged(records, ("record", "version", "variant")))
    dump = dumps[-1]
    write_lines("layouts.jsonl.gz", layouts(dump / "schemas"))
    apis = [api for api in read(dump / "schemas" / "apis.json")["apis"] if api["valid"]]
    errors = read(dump / "errors.json")
    write_lines(
        "tables.jsonl.gz",
        [
            {
                "apis": [reduced_api(api) for api in apis],
                "record_types": read(dump / "schemas" / "record-types.json"),
                "errors": [{key: row[key] for key in ERROR_KEYS} for row in errors["errors"]],
            }
        ],
    )


def merged(releases: list[list[Any]], order: tuple[str, ...]) -> list[Any]:
    """The rows of all releases, each once, sorted by these keys."""
    rows: list[Any] = []
    seen: set[str] = set()
    for row in (row for release in releases for row in release):
        text = json.dumps(row, sort_keys=True)
        if text not in seen:
            seen.add(text)
            rows.append(row)
    return sorted(rows, key=lambda row: tuple(row[key] for key in order))


def reduced_frames(rows: list[Any]) -> list[Any]:
    ranges: dict[str, list[int]] = {}
    for row in rows:
        ranges.setdefault(row["api"] + row["kind"], []).append(row["version"])
    kept = []
    for row in rows:
        versions = ranges[row["api"] + row["kind"]]
        ends = (min(versions), max(versions))
        variant = row["variant"]
        if (
            variant in ("full", "nulls")
            or (variant == "edge" and row["version"] in ends)
            or (variant == "unknown_tags" and row["version"] == ends[1])
        ):
            kept.append({key: value for key, value in row.items() if key not in ("api_key", "header_version")})
    return kept


def reduced_api(api: Any) -> Any:
    return {key: api[key] for key in API_KEYS} | {
        "request_header": api["request_header_version"],
        "response_header": api["response_header_version"],
        "announced": api["api_versions_response"],
    }


def layouts(schemas: Path) -> list[Any]:
    rows = []
    for entry in read(schemas / "index.json")["messages"]:
        message = read(schemas / entry["file"])
        fields = {
            path: {key: field[key] for key in FIELD_KEYS if key in field} for path, field in message["fields"].items()
        }
        rows.append({**entry, "layouts": message["layouts"], "fields": fields})
        del rows[-1]["file"]
    return rows


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_lines(name: str, rows: list[Any]) -> None:
    text = "\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    (HERE / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main([Path(dump) for dump in sys.argv[1:]])
