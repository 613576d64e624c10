"""The identity of log directories: the content of each `meta.properties`, and checks that they belong together.

A directory belongs to one node of one cluster, and has an id of its own (KIP-858). A node that starts with the
directory of another node or cluster would serve wrong data, so all directories are checked before any log is opened. A
directory that cannot be read counts as failed: the node may run without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kalda.base.disk import Disk
from kalda.base.ids import Uuid, UuidSource, is_reserved, uuid_from_text, uuid_to_text
from kalda.storage.checkpoints import META_PROPERTIES_FILE, read_meta_properties, write_meta_properties

FORMAT_HINT = "format it with: kalda storage format -t CLUSTER_ID -c CONFIG"


class MetaPropertiesError(Exception):
    """A directory's identity is wrong. The message has the directory, what is wrong, and what can be done."""


class MetaProperties(NamedTuple):
    """The identity of one directory. Version 0 was written by brokers with ZooKeeper, and may lack all other fields."""

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: Uuid | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, str]) -> MetaProperties:
        """Raises `ValueError` for an unknown version, a missing value or a malformed one."""
        version = _integer(values.get("version", "0"), "version")
        if version not in (0, 1):
            raise ValueError(f"Unknown meta.properties version number {version}")
        cluster_id = values.get("cluster.id")
        node_key = "broker.id" if version == 0 else "node.id"
        node_id = _integer(values[node_key], node_key) if node_key in values else None
        if version == 1:
            if cluster_id is None:
                raise ValueError("cluster.id was not found.")
            if node_id is None:
                raise ValueError("Failed to find node.id")
        directory_id = None
        if "directory.id" in values:
            try:
                directory_id = uuid_from_text(values["directory.id"])
            except ValueError as error:
                raise ValueError(f"Unable to read directory.id as a Uuid: {error}") from None
        return cls(version, cluster_id, node_id, directory_id)

    def to_values(self) -> dict[str, str]:
        """The values by key, in the order in which Kafka writes them."""
        values = {}
        if self.node_id is not None:
            values["broker.id" if self.version == 0 else "node.id"] = str(self.node_id)
        if self.directory_id is not None:
            values["directory.id"] = uuid_to_text(self.directory_id)
        values["version"] = str(self.version)
        if self.cluster_id is not None:
            values["cluster.id"] = self.cluster_id
        return values

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key}={value}" for key, value in sorted(self.to_values().items())) + "}"


def _integer(text: str, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"Unable to read {key} as a base-10 number.") from None


class MetaPropertiesEnsemble(NamedTuple):
    """All directories of a node: formatted ones with their identity, empty ones, failed ones with the error."""

    metadata_log_dir: str | None
    properties: Mapping[str, MetaProperties] = MappingProxyType({})
    empty_dirs: tuple[str, ...] = ()
    errors: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def load(cls, disk: Disk, log_dirs: Iterable[str], metadata_log_dir: str | None) -> MetaPropertiesEnsemble:
        """The metadata directory is loaded too, if it is not among `log_dirs`."""
        properties: dict[str, MetaProperties] = {}
        empty: list[str] = []
        errors: dict[str, str] = {}
        for log_dir in dict.fromkeys([*log_dirs, *([metadata_log_dir] if metadata_log_dir else [])]):
            try:
                stat = disk.stat(log_dir)
                if stat is not None and not stat.is_dir:
                    errors[log_dir] = "it is not a directory"
                    continue
                values = read_meta_properties(disk, f"{log_dir}/{META_PROPERTIES_FILE}")
                if values is None:
                    empty.append(log_dir)
                else:
                    properties[log_dir] = MetaProperties.from_values(values)
            except (OSError, ValueError) as error:
                errors[log_dir] = str(error)
        return cls(metadata_log_dir, properties, tuple(empty), errors)

    @property
    def cluster_id(self) -> str | None:
        for properties in self.properties.values():
            if properties.cluster_id is not None:
                return properties.cluster_id
        return None

    def verify(self, *, cluster_id: str | None = None, node_id: int | None = None) -> None:
        """Check every identity against the expected ids (None: any), and that directory ids are unique.

        Raises `MetaPropertiesError`.
        """
        seen: dict[Uuid, str] = {}
        for log_dir, found in self.properties.items():
            path = f"{log_dir}/{META_PROPERTIES_FILE}"
            if cluster_id is not None and found.cluster_id is not None and found.cluster_id != cluster_id:
                raise MetaPropertiesError(
                    f"Invalid cluster.id in: {path}. Expected {cluster_id}, but read {found.cluster_id}. "
                    f"The directory belongs to that other cluster: use its id, or another directory"
                )
            if node_id is not None and found.node_id is not None and found.node_id != node_id:
                raise MetaPropertiesError(
                    f"Stored node id {found.node_id} doesn't match previous node id {node_id} in {path}. If you moved "
                    f"your data, make sure your configured node id matches. If you intend to create a new node, you "
                    f"should remove all data in your data directories."
                )
            if found.directory_id is not None:
                text = uuid_to_text(found.directory_id)
                if is_reserved(found.directory_id):
                    raise MetaPropertiesError(f"Invalid reserved directory ID {text} found in {log_dir}")
                if found.directory_id in seen:
                    raise MetaPropertiesError(
                        f"Duplicate directory ID {text} found. It was the ID of {seen[found.directory_id]}, but also "
                        f"of {log_dir}"
                    )
                seen[found.directory_id] = log_dir

    def verify_for_start(self, node_id: int) -> None:
        """The checks of a starting node: the metadata directory is formatted, and all directories are this node's.

        Raises `MetaPropertiesError`.
        """
        for log_dir, error in self.errors.items():
            if log_dir == self.metadata_log_dir:
                raise MetaPropertiesError(f"The metadata log directory {log_dir} cannot be used: {error}")
        if not self.properties:
            dirs = ", ".join(self.empty_dirs) or ", ".join(self.errors)
            raise MetaPropertiesError(
                f"No readable meta.properties files found: {dirs} is not formatted; {FORMAT_HINT}"
            )
        if self.metadata_log_dir is not None and self.metadata_log_dir not in self.properties:
            raise MetaPropertiesError(
                f"No `meta.properties` found in the metadata log directory {self.metadata_log_dir}; {FORMAT_HINT}"
            )
        for log_dir, properties in self.properties.items():
            if properties == MetaProperties(0):
                raise MetaPropertiesError(
                    f"{log_dir}/{META_PROPERTIES_FILE} is empty or damaged: it has neither version, cluster.id nor "
                    "node.id. Write them into it again, as another directory or node of this cluster has them"
                )
            if properties.version == 0:
                raise MetaPropertiesError(
                    f"{log_dir} is formatted for a broker on ZooKeeper, which is not supported; "
                    f"use an empty directory and {FORMAT_HINT}"
                )
        self.verify(cluster_id=self.cluster_id, node_id=node_id)

    def complete(self, disk: Disk, node_id: int, new_id: UuidSource, now_ms: int) -> MetaPropertiesEnsemble:
        """Write an identity to directories that were added to a formatted node, and an id to those without one.

        To be called after `verify_for_start`. A directory that cannot be written to is among the failed ones of the
        result.
        """
        properties = dict(self.properties)
        errors = dict(self.errors)
        template = MetaProperties(1, self.cluster_id, node_id)
        for log_dir in (*self.properties, *self.empty_dirs):
            current = self.properties.get(log_dir, template)
            completed = current if current.directory_id is not None else current._replace(directory_id=new_id())
            if completed is self.properties.get(log_dir):
                continue
            try:
                write(disk, log_dir, completed, now_ms)
                properties[log_dir] = completed
            except OSError as error:
                properties.pop(log_dir, None)
                errors[log_dir] = str(error)
        return MetaPropertiesEnsemble(self.metadata_log_dir, properties, (), errors)


def write(disk: Disk, log_dir: str, properties: MetaProperties, now_ms: int) -> None:
    """Write the identity of a directory, and make the directory where it is missing. Both are on the device when this
    returns."""
    make_dirs_durably(disk, log_dir)
    write_meta_properties(disk, f"{log_dir}/{META_PROPERTIES_FILE}", properties.to_values(), now_ms)


def make_dirs_durably(disk: Disk, path: str) -> None:
    """Make the directory and its missing parents. Their names are on the device when this returns, also those that
    another call had made and not synced, because its process was killed."""
    top = "/" if path.startswith("/") else "."
    child, parents = path.rstrip("/"), []
    while child:
        is_made = disk.stat(child) is None
        child = child.rpartition("/")[0]
        parents.append((child or top, is_made))
    disk.make_dirs(path)
    for parent, is_made in parents:
        try:
            disk.sync_dir(parent)
        except OSError:
            if is_made:
                raise  # a parent of what was there before may be another user's, or on a device that is read-only
