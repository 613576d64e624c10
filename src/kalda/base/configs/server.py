"""A node's configuration: the values of its keys, parsed from the properties with which a Kafka broker starts.

`ServerValues` parses and checks each value by itself. `check_server` has what must hold between the keys: the checks
that Kafka makes before it starts. `ServerConfig` has passed them. Properties whose key is unknown are kept, since
plugins may read them; `unknown` lists them for a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from kalda.base.configs.addresses import (
    ListenerEndpoint,
    Voter,
    listener_name,
    parse_bootstrap_servers,
    parse_endpoints,
    parse_protocol_map,
    parse_voters,
)
from kalda.base.configs.broker import BROKER, DYNAMIC_ONLY, base_name, find_key
from kalda.base.configs.definition import InvalidConfig, Value
from kalda.base.configs.topic import BROKER_SYNONYMS, HOUR_MS, MINUTE_MS, TOPIC

_UNLIMITED = -1
_DEFAULT_PRINCIPAL_BUILDER = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"

_OF_THE_AUTHORIZER = ("super.users", "allow.everyone.if.no.acl.found")
"""Keys that no table of Kafka has: its StandardAuthorizer reads them."""


def unknown_properties(names: Iterable[str]) -> list[str]:
    """Those of the names that no table has."""
    return [
        name
        for name in names
        if base_name(name) not in BROKER
        and name not in DYNAMIC_ONLY
        and name not in _OF_THE_AUTHORIZER
        and not name.startswith("config.providers.")
    ]


class ServerValues:
    """`values["log.segment.bytes"]` is a typed value; the properties below are values that several keys decide."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Parse all. Raises `InvalidConfig`."""
        self.properties = with_node_id_synonyms(properties)
        self._values = BROKER.parse(self.properties) | DYNAMIC_ONLY.parse(self.properties)
        """By key; defaults, and overrides for single listeners, among them."""
        for name, text in self.properties.items():
            key = find_key(name)
            if key is not None and name != key.name:
                self._values[name] = key.parse(text)

    def __getitem__(self, name: str) -> Any:
        """The value of a key that the table has; `KeyError` for others."""
        return self._values[name]

    def for_listener(self, listener: str, name: str) -> Any:
        """A key's value on a listener: its override where there is one."""
        override = f"listener.name.{listener.lower()}.{name}"
        return self._values[override] if override in self._values else self._values[name]

    @property
    def values(self) -> Mapping[str, Value]:
        """All values by key, overrides for listeners among them."""
        return self._values

    @cached_property
    def unknown(self) -> list[str]:
        """Properties that no table has."""
        return unknown_properties(self.properties)

    def is_set(self, name: str) -> bool:
        """True where the properties have the key."""
        return name in self.properties

    # -- identity

    @property
    def node_id(self) -> int:
        """`node.id`."""
        node_id: int = self._number("node.id")
        return node_id

    @property
    def is_broker(self) -> bool:
        """True with the broker role."""
        return "broker" in self._list("process.roles")

    @property
    def is_controller(self) -> bool:
        """True with the controller role."""
        return "controller" in self._list("process.roles")

    @property
    def rack(self) -> str | None:
        """`broker.rack`."""
        rack = self._values["broker.rack"]
        return rack if isinstance(rack, str) else None

    # -- directories

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """`log.dirs`, else `log.dir`."""
        return self._list("log.dirs") or self._list("log.dir")

    @property
    def metadata_log_dir(self) -> str:
        """`metadata.log.dir`, else the first of the log directories."""
        directory = self._values["metadata.log.dir"]
        return directory if isinstance(directory, str) else self.log_dirs[0]

    @property
    def cordoned_log_dirs(self) -> tuple[str, ...]:
        """`cordoned.log.dirs`, where `*` stands for all."""
        cordoned = self._list("cordoned.log.dirs")
        return self.log_dirs if cordoned == ("*",) else cordoned

    # -- listeners

    @cached_property
    def protocol_map(self) -> dict[str, str]:
        """Security protocols by listener name.

        Without `listener.security.protocol.map`, controller listeners are plaintext, as long as nothing else speaks
        TLS or SASL.
        """
        protocols = parse_protocol_map(str(self._values["listener.security.protocol.map"]))
        if self.is_set("listener.security.protocol.map"):
            return protocols
        names = [*self.controller_listener_names, *map(listener_name, self._list("listeners"))]
        if not {"SSL", "SASL_SSL", "SASL_PLAINTEXT"} & set(names):
            protocols |= dict.fromkeys(self.controller_listener_names, "PLAINTEXT")
        return protocols

    @cached_property
    def listeners(self) -> list[ListenerEndpoint]:
        """All listeners of this node."""
        return parse_endpoints(self._list("listeners"), self.protocol_map, own_ports=True)

    @property
    def controller_listener_names(self) -> list[str]:
        """`controller.listener.names`, upper case; the first is used to reach controllers."""
        return [name.upper() for name in self._list("controller.listener.names")]

    @property
    def controller_listeners(self) -> list[ListenerEndpoint]:
        """Listeners that serve the controller."""
        names = self.controller_listener_names
        return [endpoint for endpoint in self.listeners if endpoint.listener in names]

    @property
    def broker_listeners(self) -> list[ListenerEndpoint]:
        """Listeners that serve the broker."""
        names = self.controller_listener_names
        return [endpoint for endpoint in self.listeners if endpoint.listener not in names]

    @cached_property
    def advertised_listeners(self) -> list[ListenerEndpoint]:
        """Where brokers and clients reach this node. An empty host stands for the node's own name."""
        names = self.controller_listener_names
        return [endpoint for endpoint in self._advertised() if endpoint.listener not in names]

    @cached_property
    def advertised_controller_listeners(self) -> list[ListenerEndpoint]:
        """Where the quorum reaches this node: as advertised, else as in the static voters, else as listened on."""
        advertised = {endpoint.listener: endpoint for endpoint in self._advertised()} if self._has_advertised() else {}
        own = next((voter for voter in self.voters if voter.id == self.node_id), None)
        first = self.controller_listener_names[:1]
        found = []
        for endpoint in self.controller_listeners:
            if endpoint.listener in advertised:
                endpoint = advertised[endpoint.listener]
            elif own is not None and [endpoint.listener] == first:
                endpoint = endpoint._replace(host=own.host, port=own.port)
            found.append(endpoint)
        return found

    @cached_property
    def inter_broker_listener_name(self) -> str:
        """`inter.broker.listener.name`, else the protocol's name. Raises `InvalidConfig`."""
        name = self._values["inter.broker.listener.name"]
        if not isinstance(name, str):
            return str(self._values["security.inter.broker.protocol"])
        if self.is_set("security.inter.broker.protocol"):
            raise InvalidConfig(
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
            )
        if name.upper() not in self.protocol_map:
            raise InvalidConfig(
                f"Listener with name {name.upper()} defined in inter.broker.listener.name not found in "
                "listener.security.protocol.map."
            )
        return name.upper()

    @property
    def early_start_listeners(self) -> list[str]:
        """Listeners that open before the authorizer is ready: `early.start.listeners`, else those of the controller."""
        if self._values["early.start.listeners"] is None:
            return [endpoint.listener for endpoint in self.controller_listeners]
        return [name.upper() for name in self._list("early.start.listeners")]

    def principal_builder(self, listener: str) -> str | None:
        """`principal.builder.class` of a listener; None for Kafka's own, which is built in."""
        path = self.for_listener(listener, "principal.builder.class")
        return str(path) if path and path != _DEFAULT_PRINCIPAL_BUILDER else None

    # -- quorum

    @cached_property
    def voters(self) -> list[Voter]:
        """`controller.quorum.voters`; empty with a dynamic quorum (KIP-853)."""
        return parse_voters(self._list("controller.quorum.voters"))

    @cached_property
    def bootstrap_servers(self) -> list[tuple[str, int]]:
        """Where the leader of the quorum is found: `controller.quorum.bootstrap.servers`, else the static voters."""
        servers = parse_bootstrap_servers(self._list("controller.quorum.bootstrap.servers"))
        return servers or [(voter.host, voter.port) for voter in self.voters]

    # -- times with a key for each unit

    @property
    def log_retention_ms(self) -> int:
        """-1: no limit."""
        retention_ms = self._first(
            ("log.retention.ms", 1), ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)
        )
        return retention_ms if retention_ms >= 0 else _UNLIMITED

    @property
    def log_roll_ms(self) -> int:
        """Age at which a segment is closed."""
        return self._first(("log.roll.ms", 1), ("log.roll.hours", HOUR_MS))

    @property
    def log_roll_jitter_ms(self) -> int:
        """Segments are closed up to so much earlier, at random."""
        return self._first(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS))

    def topic_defaults(self) -> dict[str, Value]:
        """Every topic key's value where the topic does not set it."""
        values: dict[str, Value] = {}
        for key in TOPIC:
            sources = BROKER_SYNONYMS.get(key.name)
            if sources is None:
                values[key.name] = TOPIC.default(key.name)
            elif len(sources) == 1:
                values[key.name] = self._values[sources[0][0]]
            else:
                values[key.name] = self._first(*sources)
        values["retention.ms"] = self.log_retention_ms
        return values

    # -- limits of connections

    def connections_per_ip_overrides(self) -> dict[str, int]:
        """`max.connections.per.ip.overrides` by address or name of a host. Raises `InvalidConfig`."""
        overrides: dict[str, int] = {}
        for entry in str(self._values["max.connections.per.ip.overrides"]).split(","):
            if not entry.strip():
                continue
            address, _, count = entry.rpartition(":")
            try:
                overrides[address.strip()] = int(count)
            except ValueError:
                address = ""
            if not address.strip():
                raise InvalidConfig(
                    "Error parsing configuration property 'max.connections.per.ip.overrides': "
                    f"{entry.strip()} is not of the form address:count"
                )
        return overrides

    # -- inside

    def _has_advertised(self) -> bool:
        return self._values["advertised.listeners"] is not None

    def _advertised(self) -> list[ListenerEndpoint]:
        if not self._has_advertised():
            return self.listeners
        return parse_endpoints(self._list("advertised.listeners"), self.protocol_map, own_ports=False)

    def _first(self, *sources: tuple[str, int]) -> int:
        """The value of the first of these keys that has one, times its factor. The last key always has a value."""
        for name, factor in sources:
            value = self._values[name]
            if value is not None:
                assert isinstance(value, int)
                return value * factor
        raise AssertionError(f"{sources[-1][0]} has no default")

    def _number(self, name: str) -> int:
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def _list(self, name: str) -> tuple[str, ...]:
        value = self._values[name]
        return value if isinstance(value, tuple) else ()


def with_node_id_synonyms(properties: Mapping[str, str]) -> dict[str, str]:
    """`broker.id` and `node.id` stand for each other where only one is set."""
    filled = dict(properties)
    for one, other in (("node.id", "broker.id"), ("broker.id", "node.id")):
        if one in filled:
            filled.setdefault(other, filled[one])
    return filled


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


class ServerConfig(ServerValues):
    """The effective configuration of a node. It does not change: dynamic configs make another one (see `dynamic`).

    Invariant: it has passed every check that Kafka makes before it starts, and has no authorizer.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises `InvalidConfig` for the first key or the first combination of keys that is wrong."""
        check_properties(properties)
        super().__init__(properties)
        check_server(self)
