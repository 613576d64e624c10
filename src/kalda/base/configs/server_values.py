"""The values of a node's configuration by Kafka's keys, parsed from the properties with which a Kafka broker starts.

Each value is parsed and checked by itself; what must hold between the keys is in `server_checks`. Properties whose key
is unknown are kept, since plugins may read them; `unknown` lists them for a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from kalda.base.configs.broker import BROKER, DYNAMIC_ONLY, base_name, find_key
from kalda.base.configs.definition import InvalidConfig, Value
from kalda.base.configs.listeners import ListenerEndpoint, listener_name, parse_endpoints, parse_protocol_map
from kalda.base.configs.quorum_addresses import Voter, parse_bootstrap_servers, parse_voters
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
