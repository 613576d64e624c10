"""Pages of the metrics listeners of a cluster's brokers, found by their configs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import click

from kalda.cli.common.failures import Failure

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

LISTENER = "kalda.metrics.listener"
_ANY_HOST = ("", "0.0.0.0", "::")
_TIMEOUT_S = 10


class MetricsAddress(NamedTuple):
    """A broker, and where it serves its metrics."""

    node_id: int
    host: str
    port: int


def addresses(
    admin: CommandAdmin, node_id: int | None = None, *, unreached: Collection[int] = ()
) -> list[MetricsAddress]:
    """The metrics listeners of all brokers but those that are not reached, or of one. Raises `Failure` where there is
    none, and `ApiError`."""
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.client.admin.configs import ConfigResource

    found = []
    for node in admin.describe_cluster().nodes:
        if node.node_id in unreached or (node_id is not None and node.node_id != node_id):
            continue
        resource = ConfigResource(ConfigResourceType.BROKER, str(node.node_id))
        configs = admin.describe_configs([resource]).value(resource)
        text = configs[LISTENER].value if LISTENER in configs else None
        if text:
            host, _, port = text.removeprefix("http://").rstrip("/").rpartition(":")
            host = host.strip("[]")
            found.append(MetricsAddress(node.node_id, node.host if host in _ANY_HOST else host, int(port)))
    if not found:
        which = "no broker" if node_id is None else f"broker {node_id} is unknown, or"
        raise Failure(f"{which} serves metrics: set {LISTENER}, as in {LISTENER}=127.0.0.1:9404")
    return found


def read(address: MetricsAddress, path: str, **query: str) -> Any:
    """The JSON of a page. Raises `Failure` where the listener does not answer."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise Failure(f"http://{address.host}:{address.port}{path}: {response.status} {response.reason}")
        return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failure(
            f"broker {address.node_id} serves metrics on {address.host}:{address.port}, which does not answer: {error}"
        ) from error
    finally:
        connection.close()


def read_all(admin: CommandAdmin, path: str, node_id: int | None = None, **query: str) -> list[Any]:
    """The page of each broker that serves metrics, or of one. Raises `Failure`, `ApiError`."""
    return [read(each, path, **query) for each in addresses(admin, node_id)]


def clock_of(address: MetricsAddress) -> float | None:
    """The broker's time of day, in whole seconds since 1970; None where it does not say. Raises `OSError`."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/")
        date = connection.getresponse().getheader("Date")
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


node_option = click.option("--node", "node_id", type=int, metavar="ID", help="Only this broker. [default: all]")
