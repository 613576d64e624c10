"""Fresh storage for a node, as Kafka's storage tool writes it.

Every log directory gets its identity and the first records of a new cluster. Where the quorum's voters are given, the
metadata directory gets the quorum's first snapshot, which contains them (KIP-853). A directory's `meta.properties` is
written last: a directory whose formatting was interrupted has none, and is formatted again.

Everything is checked before the first write. Error messages are those of Kafka's tool, because people search for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from kalda.base.disk import Disk
from kalda.base.ids import UuidSource, is_reserved, uuid_from_text
from kalda.metadata import meta_properties
from kalda.metadata.features import (
    FEATURE_NAME,
    FEATURES,
    KRAFT_VERSION,
    LATEST_PRODUCTION,
    LATEST_TESTING,
    MetadataVersion,
    check_dependencies,
    default_levels,
    feature_names,
    from_level,
    from_version_string,
)
from kalda.metadata.meta_properties import MetaProperties, MetaPropertiesEnsemble, MetaPropertiesError
from kalda.metadata.scram import parse_scram_arguments
from kalda.protocol.messages.log_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kalda.protocol.messages.metadata_records import FeatureLevelRecord, UserScramCredentialRecord
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record, encode_metadata_record
from kalda.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from kalda.records.batch import iter_batches, read_header
from kalda.records.builder import build_batch, read_records
from kalda.records.control import control_batch
from kalda.storage.checkpoints import replace_file

# The first records of a cluster: metadata.version, the other features, SCRAM credentials.
#
# They are made when storage is formatted, and written into the log by the first active controller of an empty log. So
# metadata.version precedes all records that depend on it. On disk they are a file of batches between a snapshot's
# header and footer: `bootstrap.checkpoint` beside the logs, or the quorum's own snapshot 0-0, which also holds the
# first voters.

BOOTSTRAP_FILE = "bootstrap.checkpoint"
METADATA_DIR = "__cluster_metadata-0"
BOOTSTRAP_SNAPSHOT_FILE = f"{0:020d}-{0:010d}.checkpoint"
_MAX_BYTES = 64 * 1024 * 1024


class BootstrapMetadata(NamedTuple):
    """Records, one of which sets metadata.version; `source` is where they come from, for messages."""

    records: tuple[VersionedRecord, ...]
    metadata_version: MetadataVersion
    source: str

    @classmethod
    def from_levels(cls, version: MetadataVersion, levels: Mapping[str, int], source: str) -> BootstrapMetadata:
        """Records of the levels that are not 0. kraft.version is left out: the quorum's control records hold it."""
        records = [FeatureLevelRecord(name=FEATURE_NAME, feature_level=version.value)]
        records += [
            FeatureLevelRecord(name=name, feature_level=levels[name])
            for name in feature_names(levels)
            if levels[name] != 0 and name not in (FEATURE_NAME, KRAFT_VERSION)
        ]
        return cls(tuple(VersionedRecord(record, 0) for record in records), version, source)

    @classmethod
    def from_records(cls, records: Iterable[VersionedRecord], source: str) -> BootstrapMetadata:
        """Raises `ValueError` where no record sets metadata.version, or sets one that this release does not have."""
        kept = tuple(records)
        level = None
        for record, _ in kept:
            if isinstance(record, FeatureLevelRecord) and record.name == FEATURE_NAME:
                level = record.feature_level
        if level is None:
            raise ValueError(
                f"No FeatureLevelRecord for {FEATURE_NAME} was found in the bootstrap metadata from {source}"
            )
        return cls(kept, from_level(level), source)

    @classmethod
    def default(cls) -> BootstrapMetadata:
        """For a controller whose storage has no bootstrap records."""
        return cls.from_levels(LATEST_PRODUCTION, {}, "the default bootstrap")

    def with_records(self, more: Iterable[VersionedRecord]) -> BootstrapMetadata:
        return BootstrapMetadata((*self.records, *more), self.metadata_version, self.source)

    def level(self, name: str) -> int:
        """The level of a feature; 0 for one that is off."""
        level = 0
        for record, _ in self.records:
            if isinstance(record, FeatureLevelRecord) and record.name == name:
                level = record.feature_level
        return level

    def to_file(self, now_ms: int) -> bytes:
        """The content of `bootstrap.checkpoint`."""
        return snapshot_file(self.records, now_ms=now_ms, last_contained_log_time_ms=0)


def read_bootstrap(disk: Disk, metadata_log_dir: str) -> BootstrapMetadata:
    """The records of the quorum's first snapshot where it has any, else of `bootstrap.checkpoint`, else the default.

    Raises `ValueError` where a file exists and cannot be read: a cluster must not start with guessed levels.
    """
    for name in (f"{METADATA_DIR}/{BOOTSTRAP_SNAPSHOT_FILE}", BOOTSTRAP_FILE):
        path = f"{metadata_log_dir}/{name}"
        if disk.stat(path) is None:
            continue
        try:
            records = list(snapshot_records(disk.read_file(path, _MAX_BYTES)))
        except Exception as error:
            raise ValueError(f"Cannot read the bootstrap metadata in {path}: {error}") from error
        if records or name == BOOTSTRAP_FILE:
            return BootstrapMetadata.from_records(records, f"the binary bootstrap metadata file: {path}")
    return BootstrapMetadata.default()


def snapshot_records(data: bytes) -> Iterator[VersionedRecord]:
    """The metadata records of a file of batches. Raises `CorruptRecord` or `InvalidRequest` on anything malformed."""
    for position, header in iter_batches(data):
        if not header.is_control:
            for record in read_records(data, position, header):
                if record.value is None:
                    raise ValueError(f"the record at offset {record.offset} has no value")
                yield decode_metadata_record(record.value)


def snapshot_file(
    records: Iterable[VersionedRecord],
    *,
    now_ms: int,
    last_contained_log_time_ms: int,
    kraft_version: int | None = None,
    voters: VotersRecord | None = None,
) -> bytes:
    """Batches from a snapshot's header to its footer, at epoch 0. The quorum's control records follow the header."""
    head: list[SnapshotHeaderRecord | KRaftVersionRecord | VotersRecord] = [
        SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_log_time_ms)
    ]
    if kraft_version is not None:
        head.append(KRaftVersionRecord(kraft_version=kraft_version))
    if voters is not None:
        head.append(voters)
    out = control_batch(head, timestamp_ms=now_ms, base_offset=0, leader_epoch=0)
    next_offset = len(head)
    rows = [(now_ms, None, encode_metadata_record(record, version), ()) for record, version in records]
    if rows:
        batch = build_batch(rows, base_offset=next_offset, leader_epoch=0)
        next_offset = read_header(batch).next_offset
        out += batch
    out += control_batch([SnapshotFooterRecord()], timestamp_ms=now_ms, base_offset=next_offset, leader_epoch=0)
    return bytes(out)


_SOURCE = "format command"


class FormatError(Exception):
    """Why nothing was formatted."""


class QuorumChoice(Enum):
    """The option that determines the first voters of the quorum, where `controller.quorum.voters` does not."""

    UNSPECIFIED = None
    STANDALONE = "--standalone"
    INITIAL_CONTROLLERS = "--initial-controllers"
    NO_INITIAL_CONTROLLERS = "--no-initial-controllers"


@dataclass(frozen=True, slots=True)
class FormatRequest:
    """The directories to format, and the node and the cluster that they are for.

    `controller_endpoint` is the advertised endpoint of this node's controller. STANDALONE needs all of it,
    INITIAL_CONTROLLERS its name. `initial_controllers` is the value of the option `--initial-controllers`.
    """

    cluster_id: str
    node_id: int
    log_dirs: Sequence[str]
    metadata_log_dir: str
    is_controller: bool
    controller_endpoint: VoterEndpoint
    has_static_voters: bool = False
    quorum: QuorumChoice = QuorumChoice.UNSPECIFIED
    initial_controllers: str = ""
    release_version: str | None = None
    feature_levels: Mapping[str, int] = field(default_factory=dict)
    scram_arguments: Sequence[str] = ()
    ignore_formatted: bool = False
    unstable: bool = False


def format_storage(
    disk: Disk,
    request: FormatRequest,
    *,
    new_id: UuidSource,
    entropy: Callable[[int], bytes],
    now_ms: int,
    say: Callable[[str], None],
) -> None:
    """Format the directories that are not formatted; `say` is called with each line of output. Raises `FormatError`
    where nothing was formatted, `OSError` where the disk fails in between."""
    try:
        voters = _initial_voters(request, new_id)
        levels = effective_levels(request)
        version = from_level(levels[FEATURE_NAME])
        bootstrap = BootstrapMetadata.from_levels(version, levels, _SOURCE)
        if request.scram_arguments:
            bootstrap = bootstrap.with_records(_scram_records(request.scram_arguments, version, entropy))
        ensemble = MetaPropertiesEnsemble.load(disk, request.log_dirs, request.metadata_log_dir)
        if request.ignore_formatted or not ensemble.properties:
            ensemble.verify(cluster_id=request.cluster_id, node_id=request.node_id)
    except (ValueError, MetaPropertiesError) as error:
        raise FormatError(str(error)) from error
    if ensemble.properties and not request.ignore_formatted:
        raise FormatError(
            f"Log directory {next(iter(ensemble.properties))} is already formatted, as one of cluster "
            f"{ensemble.cluster_id}: a node can be started with it. Use --ignore-formatted to leave it as it is and "
            f"format the others."
        )
    for log_dir in ensemble.errors:
        say(f"I/O error trying to read log directory {log_dir}. Ignoring...")
    if ensemble.errors and not ensemble.properties and not ensemble.empty_dirs:
        raise FormatError("No available log directories to format.")
    if not ensemble.empty_dirs:
        say("All of the log directories are already formatted.")
        return
    say(f"Feature levels: {describe(bootstrap)}.")
    for log_dir in ensemble.empty_dirs:
        kind, directory_id = "data directory", None
        if log_dir == request.metadata_log_dir:
            own = None if voters is None else voters.get(request.node_id)
            kind = "metadata directory" if voters is None else "dynamic metadata directory"
            if own is not None:
                kind, directory_id = "dynamic metadata voter directory", own.key.directory_id
        say(f"Formatting {kind} {log_dir} with {FEATURE_NAME} {version}.")
        meta_properties.make_dirs_durably(disk, log_dir)
        replace_file(disk, f"{log_dir}/{BOOTSTRAP_FILE}", bootstrap.to_file(now_ms))
        if voters is not None and log_dir == request.metadata_log_dir:
            _write_first_snapshot(disk, log_dir, voters, levels[KRAFT_VERSION], now_ms)
        identity = MetaProperties(1, request.cluster_id, request.node_id, directory_id or new_id())
        meta_properties.write(disk, log_dir, identity, now_ms)


def _write_first_snapshot(disk: Disk, log_dir: str, voters: VoterSet, kraft_version: int, now_ms: int) -> None:
    directory = f"{log_dir}/{METADATA_DIR}"
    meta_properties.make_dirs_durably(disk, directory)
    data = snapshot_file(
        (), now_ms=now_ms, last_contained_log_time_ms=now_ms, kraft_version=kraft_version, voters=voters.to_record()
    )
    replace_file(disk, f"{directory}/{BOOTSTRAP_SNAPSHOT_FILE}", data)


def _initial_voters(request: FormatRequest, new_id: UuidSource) -> VoterSet | None:
    """The voters of the quorum's first snapshot; None where there is to be no such snapshot."""
    _check_identity(request)
    if request.has_static_voters and request.quorum in (QuorumChoice.STANDALONE, QuorumChoice.INITIAL_CONTROLLERS):
        raise ValueError(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    match request.quorum:
        case QuorumChoice.STANDALONE:
            if not request.is_controller:
                raise ValueError("You can only use --standalone on a controller.")
            key = ReplicaKey(request.node_id, new_id())
            return VoterSet([_voter(key, request.controller_endpoint)])
        case QuorumChoice.INITIAL_CONTROLLERS:
            return parse_initial_controllers(request.initial_controllers, request.controller_endpoint.name)
        case QuorumChoice.UNSPECIFIED if request.is_controller and not request.has_static_voters:
            raise ValueError(
                "Because controller.quorum.voters is not set on this controller, you must specify one of the "
                "following: --standalone, --initial-controllers, or --no-initial-controllers."
            )
    return None


def _check_identity(request: FormatRequest) -> None:
    if request.node_id < 0:
        raise ValueError("You must specify a valid non-negative node ID.")
    if not request.cluster_id:
        raise ValueError("You must specify the cluster id.")
    if not request.log_dirs:
        raise ValueError("You must specify at least one directory to format")


def _voter(key: ReplicaKey, endpoint: VoterEndpoint) -> Voter:
    return Voter(key, (endpoint,), 0, FEATURES[KRAFT_VERSION].latest)


def parse_initial_controllers(text: str, listener_name: str) -> VoterSet:
    """Voters of a text of `id@host:port:directory`, separated by commas. Raises `ValueError` with the invalid entry."""
    voters: dict[int, Voter] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        voter = _parse_voter(entry, listener_name)
        if voter.key.id in voters:
            raise ValueError(f"Node id {voter.key.id} was specified more than once.")
        voters[voter.key.id] = voter
    if not voters:
        raise ValueError("No voters given.")
    return VoterSet(voters.values())


def _parse_voter(entry: str, listener_name: str) -> Voter:
    def wrong(what: str) -> ValueError:
        return ValueError(f"{what} in dynamic voter string {entry!r}; expected id@host:port:directory")

    node, at, rest = entry.partition("@")
    if not at:
        raise wrong("No @ found")
    if not node.strip().isdecimal():
        raise wrong("Failed to parse node id")
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise wrong("Hostname begins with left bracket, but no right bracket was found")
        if not rest.startswith(":"):
            raise wrong("No colon following hostname could be found")
        rest = rest[1:]
    else:
        host, colon, rest = rest.partition(":")
        if not colon:
            raise wrong("No colon following hostname could be found")
    if not host:
        raise wrong("No hostname found after node id")
    port, colon, directory = rest.partition(":")
    if not colon:
        raise wrong("No colon following port could be found")
    if not port.isdecimal() or int(port) > 65535:
        raise wrong("Failed to parse port")
    try:
        directory_id = uuid_from_text(directory)
    except ValueError:
        raise wrong("Failed to parse directory ID") from None
    if is_reserved(directory_id):
        raise wrong("Reserved directory ID")
    return _voter(ReplicaKey(int(node), directory_id), VoterEndpoint(listener_name, host, int(port)))


def effective_levels(request: FormatRequest) -> dict[str, int]:
    """Level by feature, metadata.version and kraft.version included. Raises `ValueError`."""
    for name in request.feature_levels:
        if name != FEATURE_NAME and name not in FEATURES:
            raise ValueError(f"Unsupported feature: {name}. Supported features are: {', '.join(sorted(FEATURES))}")
    version = _release(request)
    levels = {**default_levels(version), **request.feature_levels, FEATURE_NAME: version.value}
    levels[KRAFT_VERSION] = _kraft_level(request)
    for name in sorted(levels):
        if name != FEATURE_NAME:
            check_dependencies(name, levels[name], levels)
    return levels


def _release(request: FormatRequest) -> MetadataVersion:
    if FEATURE_NAME in request.feature_levels:
        if request.release_version is not None:
            raise ValueError("Use --release-version instead of --feature metadata.version=X to avoid ambiguity.")
        version = from_level(request.feature_levels[FEATURE_NAME])
        if not version.is_production and not request.unstable:
            raise ValueError(f"The {FEATURE_NAME} {version} is not ready for production use yet.")
        return version
    if request.release_version is None:
        return LATEST_TESTING if request.unstable else LATEST_PRODUCTION
    return parse_release_version(request.release_version, unstable=request.unstable)


def parse_release_version(text: str, *, unstable: bool) -> MetadataVersion:
    """The metadata.version of a release. Raises `ValueError` with a list of all valid versions."""
    valid = [version for version in MetadataVersion if unstable or version.is_production]
    try:
        version = from_version_string(text)
    except ValueError:
        version = None
    if version not in valid or version is None:
        raise ValueError(f"Unknown {FEATURE_NAME} '{text}'. Supported {FEATURE_NAME} are: {', '.join(map(str, valid))}")
    return version


def _kraft_level(request: FormatRequest) -> int:
    """The level of kraft.version: 0 for static voters, 1 for others. It does not depend on the release."""
    level = request.feature_levels.get(KRAFT_VERSION)
    flags = "the flags --standalone, --initial-controllers, or --no-initial-controllers"
    if level is None:
        return 0 if request.has_static_voters else FEATURES[KRAFT_VERSION].latest
    if level == 0 and not request.has_static_voters:
        raise ValueError(
            f"Cannot set {KRAFT_VERSION} to {level} if controller.quorum.voters is empty and one of {flags} is used. "
            f"For dynamic controllers support, try removing the --feature flag for {KRAFT_VERSION}."
        )
    if level > 0 and request.has_static_voters:
        raise ValueError(
            f"Cannot set {KRAFT_VERSION} to {level} unless controller.quorum.voters is empty and one of {flags} is "
            f"used. For dynamic controllers support, try using one of --standalone, --initial-controllers, or "
            f"--no-initial-controllers and removing controller.quorum.voters."
        )
    return level


def _scram_records(
    arguments: Iterable[str], version: MetadataVersion, entropy: Callable[[int], bytes]
) -> list[VersionedRecord]:
    if not version.is_scram_supported:
        raise ValueError(f"SCRAM is only supported in {FEATURE_NAME} {MetadataVersion.IBP_3_5_IV2} or later.")
    return [VersionedRecord(record, 0) for record in parse_scram_arguments(arguments, entropy)]


def describe(bootstrap: BootstrapMetadata) -> str:
    """Feature levels, and whose SCRAM credentials, a new cluster begins with."""
    levels, users = [], []
    for record, _ in bootstrap.records:
        if isinstance(record, FeatureLevelRecord):
            release = f" ({from_level(record.feature_level)})" if record.name == FEATURE_NAME else ""
            levels.append(f"{record.name}={record.feature_level}{release}")
        elif isinstance(record, UserScramCredentialRecord):
            users.append(record.name)
    return ", ".join(levels) + (f"; SCRAM credentials of {', '.join(dict.fromkeys(users))}" if users else "")
