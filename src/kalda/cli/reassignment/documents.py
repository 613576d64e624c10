"""Plans in the JSON format of Kafka's `kafka-reassign-partitions`, version 1: each tool reads the other's plans.

A replica's directory is `any` where the broker chooses, else an absolute path on that broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kalda.base.ids import TopicPartition
from kalda.base.texts import decode_text

ANY = "any"
_VERSION = 1


class DocumentError(Exception):
    """A plan, or a file of topics, is invalid; the message is for the user."""


class ReplicaTarget(NamedTuple):
    """The planned replicas of a partition, and the log directory of each."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


def to_document(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, object]:
    """A plan with `any` for all directories."""
    return {
        "version": _VERSION,
        "partitions": [
            {
                "topic": at.topic,
                "partition": at.partition,
                "replicas": list(replicas),
                "log_dirs": [ANY] * len(replicas),
            }
            for at, replicas in sorted(targets.items())
        ],
    }


def to_text(document: Mapping[str, object]) -> str:
    """The document on one line without blanks, as Kafka's tool prints it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def read_plan(path: str) -> dict[TopicPartition, ReplicaTarget]:
    """A plan's targets. Raises `DocumentError`, `OSError`."""
    document = _load(path)
    found: dict[TopicPartition, ReplicaTarget] = {}
    try:
        for each in document["partitions"]:
            at = partition_of(each)
            replicas = tuple(_number(replica) for replica in each["replicas"])
            log_dirs = tuple(_text(path) for path in each.get("log_dirs") or [ANY] * len(replicas))
            if at in found:
                raise ValueError(f"partition {at} is there twice")
            if not replicas:
                raise ValueError(f"partition {at} has no replicas")
            if len(set(replicas)) < len(replicas):
                raise ValueError(f"partition {at} has a broker twice in {list(replicas)}")
            if len(log_dirs) != len(replicas):
                raise ValueError(f"partition {at} has {len(log_dirs)} log_dirs for replicas: {len(replicas)}")
            wrong = [path for path in log_dirs if path != ANY and not path.startswith("/")]
            if wrong:
                raise ValueError(f"partition {at}: log_dirs {wrong} are neither absolute paths nor {ANY!r}")
            found[at] = ReplicaTarget(replicas, log_dirs)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(path, error) from error
    if not found:
        raise DocumentError(f"{path} moves nothing: its list of partitions is empty")
    return found


def read_topics(path: str) -> list[str]:
    """The names in `{"version": 1, "topics": [{"topic": NAME}]}`. Raises `DocumentError`, `OSError`."""
    document = _load(path)
    try:
        names = [_text(each["topic"]) for each in document["topics"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(path, error) from error
    if not names:
        raise DocumentError(f"{path} names no topic")
    return list(dict.fromkeys(names))


def partition_of(entry: Any) -> TopicPartition:
    """The partition in an object with `topic` and `partition`. Raises `ValueError`, `KeyError`, `TypeError`."""
    return TopicPartition(_text(entry["topic"]), _number(entry["partition"]))


def _load(path: str) -> Any:
    text = decode_text(Path(path).read_bytes())
    try:
        document = json.loads(text)
    except ValueError as error:
        raise _wrong(path, error) from error
    if not isinstance(document, dict):
        raise DocumentError(f"{path}: an object with the version and a list is expected")
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise DocumentError(f"{path} has version {version!r}; only {_VERSION} is supported")
    return document


def _wrong(path: str, error: Exception) -> DocumentError:
    missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return DocumentError(f"{path}: {missing}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} where a text is expected")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{value!r} where a number from 0 is expected")
    return value


def show_partitions(partitions: Iterable[TopicPartition]) -> str:
    """The partitions' names separated by commas, as Kafka's tool prints them."""
    return ",".join(map(str, sorted(partitions)))
