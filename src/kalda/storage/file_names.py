"""Names of files and directories, as Kafka gives them."""

from __future__ import annotations

from kalda.base.ids import TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_MAX_NAME = 255
_MAX_OFFSET = 2**63 - 1


def file_name(offset: int, suffix: str) -> str:
    """20 digits, so that names sort as offsets do."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The offset that a segment's or snapshot's file name starts with; None where it does not."""
    digits = name.partition(".")[0]
    if not digits.isdigit() or not digits.isascii() or len(digits) > 20:
        return None
    offset = int(digits)
    return offset if offset <= _MAX_OFFSET else None


def dir_name(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"


def marked_dir_name(topic_partition: TopicPartition, unique: str, suffix: str) -> str:
    """The name of a directory that is to be deleted, is stray, or is to replace another:
    `topic-partition.unique-suffix`.

    The topic is cut where the name would be longer than filesystems take; `unique` is 32 hex digits.
    """
    tail = f"-{topic_partition.partition}.{unique}{suffix}"
    return topic_partition.topic[: _MAX_NAME - len(tail)] + tail


def parse_dir_name(name: str) -> TopicPartition | None:
    """The partition whose directory has this name, with or without a suffix; None where it is no partition's."""
    for suffix in (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX):
        if name.endswith(suffix):
            name = name[: -len(suffix)].rpartition(".")[0]
            break
    topic, dash, partition = name.rpartition("-")
    if not dash or not topic or not partition.isascii() or not partition.isdigit() or len(partition) > 10:
        return None
    return TopicPartition(topic, int(partition))
