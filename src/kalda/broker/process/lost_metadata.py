"""A metadata log that was lost while the logs of partitions were not.

The only controller of a cluster whose metadata log is lost would begin an empty cluster: no topic would exist, and the
broker would set all its logs aside as stray. So such a node does not start. One of several controllers may: it copies
the log from the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.configs.server import ServerConfig
from kalda.base.disk import Disk
from kalda.broker.process.disk import absolute_dir
from kalda.metadata.formatter import METADATA_DIR
from kalda.metadata.meta_properties import MetaPropertiesError
from kalda.storage.file_names import DELETE_DIR_SUFFIX, LOG_SUFFIX, STRAY_DIR_SUFFIX, parse_dir_name

_SHOWN = 3


def refuse_lost_metadata(disk: Disk, config: ServerConfig, log_dirs: Iterable[str]) -> None:
    """`log_dirs`: those that can be used. Raises `MetaPropertiesError`, and `OSError`."""
    metadata_log = f"{absolute_dir(config.metadata_log_dir)}/{METADATA_DIR}"
    if not _is_only_controller(config) or _has_records(disk, metadata_log):
        return
    logs = [name for log_dir in log_dirs for name in disk.list_dir(log_dir) if _is_partition(name)]
    if logs:
        more = f" and {len(logs) - _SHOWN} more" if len(logs) > _SHOWN else ""
        raise MetaPropertiesError(
            f"The metadata log {metadata_log} is missing or empty, but the logs of {', '.join(logs[:_SHOWN])}{more} are"
            " here. Without it no topic, config or user of the cluster exists, and this node is its only controller: it"
            " does not start, and nothing is changed. Put that directory back from a backup. To begin an empty cluster,"
            " move the directories of log.dirs away, and format new ones with: kalda storage format"
        )


def _is_only_controller(config: ServerConfig) -> bool:
    """Whether nobody else has the metadata log."""
    if not config.is_controller:
        return False
    if config.voters:
        return [voter.id for voter in config.voters] == [config.node_id]
    own = {(endpoint.host, endpoint.port) for endpoint in config.advertised_controller_listeners}
    return own.issuperset(config.bootstrap_servers)


def _has_records(disk: Disk, metadata_log: str) -> bool:
    """Whether a metadata log has a snapshot, also the first one with the voters, or a segment that is not empty."""
    if disk.stat(metadata_log) is None:
        return False
    for name in disk.list_dir(metadata_log):
        found = disk.stat(f"{metadata_log}/{name}") if name.endswith((LOG_SUFFIX, ".checkpoint")) else None
        if found is not None and found.size_bytes:
            return True
    return False


def _is_partition(name: str) -> bool:
    return (
        name != METADATA_DIR
        and not name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX))
        and parse_dir_name(name) is not None
    )
