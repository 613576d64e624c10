"""A node's configuration: the values of its keys, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from kalda.base.configs.server_checks import check_properties, check_server
from kalda.base.configs.server_values import ServerValues


class ServerConfig(ServerValues):
    """The effective configuration of a node. It does not change: dynamic configs make another one (see `dynamic`).

    Invariant: it has passed every check that Kafka makes before it starts, and has no authorizer.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises `InvalidConfig` for the first key or the first combination of keys that is wrong."""
        check_properties(properties)
        super().__init__(properties)
        check_server(self)
