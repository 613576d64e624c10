"""What a controller is made with: the properties of its node, and what the node gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from kalda.base.background import Background
from kalda.base.ids import Uuid, UuidSource
from kalda.controller.configs import AlterConfigPolicy
from kalda.controller.credentials import TokenConfig
from kalda.controller.features import KraftVersionControl
from kalda.controller.placement import Random
from kalda.controller.topics import CreateTopicPolicy
from kalda.metadata.features import VersionRange, supported_ranges


class ControllerConfig(NamedTuple):
    """The properties of the node that concern its controller; the key is given where its name differs."""

    node_id: int
    cluster_id: str
    default_replication_factor: int = 1
    num_partitions: int = 1
    broker_session_timeout_ms: int = 9_000
    leader_imbalance_check_interval_ms: int | None = 300_000
    """`leader.imbalance.check.interval.seconds`; None where `auto.leader.rebalance.enable` is off."""
    metadata_max_idle_interval_ms: int | None = 500
    unclean_leader_election_interval_ms: int = 300_000
    delete_topic_enable: bool = True
    max_records_per_batch: int = 10_000
    incarnation_id: Uuid | None = None
    """the incarnation id of the broker in this process, if there is one"""
    inter_broker_listener_name: str = "PLAINTEXT"
    dead_process_detection_enable: bool = True
    """`kalda.dead.process.detection.enable`."""
    performance_sample_period_ms: int = 60_000
    """`controller.performance.sample.period.ms`"""
    performance_always_log_threshold_ms: int = 2_000
    """`controller.performance.always.log.threshold.ms`"""
    supported_features: Mapping[str, VersionRange] = MappingProxyType(supported_ranges())
    tokens: TokenConfig = TokenConfig()


class ControllerHost(NamedTuple):
    """Time, entropy, the event loop, and what of the node a controller asks or calls."""

    new_id: UuidSource
    rng: Random
    background: Background
    elapsed_ms: Callable[[], int]
    """A clock to measure how long events take and wait."""
    on_fatal: Callable[[BaseException], None]
    """Stops the node."""
    on_poll: Callable[[], None]
    """Calls `poll`."""
    wall_ms: Callable[[], int] | None = None
    """The time of day, by which tokens expire; `elapsed_ms` where it is None."""
    voters: Callable[[], Iterable[int]] = tuple
    """Ids of voters."""
    kraft_version: KraftVersionControl | None = None
    create_topic_policy: CreateTopicPolicy | None = None
    alter_config_policy: AlterConfigPolicy | None = None
