"""What must hold between the keys of a node's configuration: the checks that Kafka makes before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kalda.base.configs.broker import BROKER
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.server_values import ServerValues

_MIB = 1024 * 1024
_ANY_ADDRESS = "0.0.0.0"
_CODECS = range(5)
_KRAFT_KEYS = (
    "process.roles",
    "node.id",
    "listeners",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
)


class RequirementFailed(InvalidConfig):
    """Keys that do not fit together. In answers Kafka puts "requirement failed: " before the message."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Checks of the properties as they are written, before synonyms and defaults are filled in. Raises `InvalidConfig`.

    `node.id` and `broker.id` are parsed by the name that the file has: with the synonym filled in, the error would name
    the other key.
    """
    for name in ("node.id", "broker.id"):
        if name in properties:
            BROKER[name].parse(properties[name])
    if "zookeeper.connect" in properties and "process.roles" not in properties:
        missing = [name for name in _KRAFT_KEYS if name not in properties]
        raise InvalidConfig(
            f"zookeeper.connect={properties['zookeeper.connect']}: ZooKeeper is not supported, as it is not by Apache "
            f"Kafka 4. Remove the zookeeper.* keys, and set the keys of KRaft, of which these are missing: "
            f"{', '.join(missing)} (or controller.quorum.voters for the last). Then format the log directories with "
            "`kalda storage format`."
        )


def check_server(config: ServerValues) -> None:
    """Raises `InvalidConfig` for the first check that fails."""
    for check in _CHECKS:
        check(config)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RequirementFailed(message)


def _check_identity(config: ServerValues) -> None:
    _require(config["node.id"] == config["broker.id"], "You must set `node.id` to the same value as `broker.id`.")


def _check_log(config: ServerValues) -> None:
    _require(config.log_roll_ms >= 1, "log.roll.ms must be greater than or equal to 1")
    _require(config.log_roll_jitter_ms >= 0, "log.roll.jitter.ms must be greater than or equal to 0")
    _require(config.log_retention_ms != 0, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
    cordoned = config["cordoned.log.dirs"] or ()
    _require(
        "*" not in cordoned or len(cordoned) == 1,
        "When cordoned.log.dirs is set to *, it must not contain other values",
    )
    missing = [entry for entry in config.cordoned_log_dirs if entry not in config.log_dirs]
    _require(
        not missing,
        "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : "
        + ", ".join(missing),
    )
    threads = config["log.cleaner.threads"]
    _require(
        threads == 0 or config["log.cleaner.dedupe.buffer.size"] // threads > _MIB,
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    )


def _check_replication(config: ServerValues) -> None:
    wait_ms = config["replica.fetch.wait.max.ms"]
    _require(
        wait_ms <= config["replica.socket.timeout.ms"],
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary "
        "socket timeouts",
    )
    _require(
        wait_ms <= config["replica.lag.time.max.ms"],
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
        "frequent changes in ISR",
    )
    for name in ("offsets.topic.compression.codec", "share.coordinator.state.topic.compression.codec"):
        _require(config[name] in _CODECS, f"Unknown compression type id: {config[name]}")


def _check_quorum(config: ServerValues) -> None:
    _require(
        bool(config.voters or config["controller.quorum.bootstrap.servers"]),
        "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap "
        "controllers or controller.quorum.voters must contain a parseable set of controllers.",
    )
    if not config.voters:
        return
    ids = [voter.id for voter in config.voters]
    shown = f"controller.quorum.voters=Set({', '.join(map(str, ids))})"
    if config.is_controller:
        _require(
            config.node_id in ids,
            f"If process.roles contains the 'controller' role, the node id {config.node_id} must be included in the "
            f"set of voters {shown}",
        )
    else:
        _require(
            config.node_id not in ids,
            f"If process.roles contains just the 'broker' role, the node id {config.node_id} must not be included in "
            f"the set of voters {shown}",
        )


def _check_listeners(config: ServerValues) -> None:
    listening = [endpoint.listener for endpoint in config.listeners]
    names = config.controller_listener_names
    where = "appearing in the 'listeners' configuration when running"
    if config.is_controller:
        if not config.is_broker:
            _require(
                all(name in names for name in listening),
                "The listeners config must only contain KRaft controller listeners from controller.listener.names "
                "when process.roles=controller",
            )
        _require(
            any(name in listening for name in names),
            f"controller.listener.names must contain at least one value {where} the KRaft controller role",
        )
        _require(
            all(name in listening for name in names),
            f"controller.listener.names must only contain values {where} the KRaft controller role",
        )
    else:
        _require(
            not any(name in listening for name in names),
            f"controller.listener.names must not contain a value {where} KRaft with just the broker role",
        )
        for name in names:
            _require(name in config.protocol_map, f"No security protocol defined for listener {name}")
    for name in config.early_start_listeners:
        _require(
            name in listening or name in names,
            f"early.start.listeners contains listener {name}, but this is not contained in listeners or "
            "controller.listener.names",
        )
    inter_broker = config.inter_broker_listener_name
    if config.is_broker:
        _check_advertised(config, inter_broker)


def _check_advertised(config: ServerValues, inter_broker: str) -> None:
    advertised = config.advertised_listeners
    names = [endpoint.listener for endpoint in advertised]
    _require(
        bool(names),
        "There must be at least one broker advertised listener. Perhaps all listeners appear in "
        "controller.listener.names?",
    )
    _require(
        inter_broker in names,
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based "
        f"on currently configured listeners are {','.join(names)}",
    )
    listening = [endpoint.listener for endpoint in config.listeners]
    _require(
        all(name in listening for name in names),
        "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found "
        f"{','.join(names)}. The valid options based on the current configuration are {','.join(listening)}",
    )
    _require(
        not any(endpoint.host == _ANY_ADDRESS for endpoint in (*advertised, *config.advertised_controller_listeners)),
        f"advertised.listeners cannot use the nonroutable meta-address {_ANY_ADDRESS}. Use a routable IP address.",
    )


def _check_connections(config: ServerValues) -> None:
    budget = config["queued.max.request.bytes"]
    _require(
        budget <= 0 or budget >= config["socket.request.max.bytes"],
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    )
    overrides = config.connections_per_ip_overrides()
    _require(
        config["max.connections.per.ip"] != 0 or bool(overrides),
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    )
    bad = [address for address in overrides if not _is_host_or_address(address)]
    _require(not bad, f"max.connections.per.ip.overrides contains invalid addresses : {','.join(bad)}")


def _is_host_or_address(address: str) -> bool:
    return all(character.isalnum() or character in ".:-_[]%" for character in address)


_GROUP_RANGES = tuple(
    (protocol, subject)
    for protocol in ("consumer", "share", "streams")
    for subject in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
)
_SHARE_RANGES = ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks")


def _check_groups(config: ServerValues) -> None:
    _require(
        "classic" in config["group.coordinator.rebalance.protocols"],
        "Disabling the 'classic' protocol is not supported.",
    )
    for protocol, subject in _GROUP_RANGES:
        name, lowest, highest = (f"group.{protocol}.{end}{subject}" for end in ("", "min.", "max."))
        _require(config[highest] >= config[lowest], f"{highest} must be greater than or equal to {lowest}")
        _require(config[name] >= config[lowest], f"{name} must be greater than or equal to {lowest}")
        _require(config[name] <= config[highest], f"{name} must be less than or equal to {highest}")
    for protocol in ("consumer", "share", "streams"):
        heartbeat, session = f"group.{protocol}.heartbeat.interval.ms", f"group.{protocol}.session.timeout.ms"
        _require(config[heartbeat] < config[session], f"{heartbeat} must be less than {session}")
    for subject in _SHARE_RANGES:
        name, lowest, highest = (f"group.share.{end}{subject}" for end in ("", "min.", "max."))
        _require(config[highest] >= config[name], f"{highest} must be greater than or equal to {name}")
        _require(config[name] >= config[lowest], f"{name} must be greater than or equal to {lowest}")
    name, highest = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    _require(config[name] <= config[highest], f"{name} must be less than or equal to {highest}")


_CHECKS: tuple[Callable[[ServerValues], None], ...] = (
    _check_identity,
    _check_log,
    _check_replication,
    _check_quorum,
    _check_listeners,
    _check_connections,
    _check_groups,
)
