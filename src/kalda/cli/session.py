"""The options of all commands that connect to a cluster: its address, TLS and SASL, the timeout, JSON instead of a
table."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from kalda.base.errors import ApiError

if TYPE_CHECKING:
    from kalda.client.cluster_client import ClusterClient
    from kalda.network.client_security import ClientSecurity

P = ParamSpec("P")

DEFAULT_BOOTSTRAP = "localhost:9092"
BOOTSTRAP_VARIABLE = "KALDA_BOOTSTRAP_SERVER"
MAX_INT16, MAX_INT32, MAX_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest values of the numeric fields of requests."""

_bootstrap_option = click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    envvar=BOOTSTRAP_VARIABLE,
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    show_envvar=True,
    help="Brokers to connect to first.",
)
_timeout_option = click.option(
    "--request-timeout-ms",
    metavar="MS",
    type=click.IntRange(1, MAX_INT32),
    default=30_000,
    show_default=True,
    help="How long to retry, in all, before the command fails.",
)
_config_option = click.option(
    "--command-config",
    metavar="FILE",
    envvar="KALDA_COMMAND_CONFIG",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    show_envvar=True,
    help="Properties of the client: security.protocol, sasl.*, ssl.*.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def with_cluster(command: Callable[Concatenate[ClusterClient, P], None]) -> Callable[..., None]:
    """Add the options for the cluster's address and the timeout, and pass a `ClusterClient` to the command."""

    @_bootstrap_option
    @_config_option
    @_timeout_option
    @wraps(command)
    def run(
        bootstrap_server: str,
        command_config: str | None,
        request_timeout_ms: int,
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        with connect(bootstrap_server, request_timeout_ms, False, command_config) as cluster:
            command(cluster, *args, **options)

    return run


def with_cluster_or_controllers(command: Callable[Concatenate[ClusterClient, P], None]) -> Callable[..., None]:
    """`with_cluster` for requests that controllers answer too, even where no broker is running (KIP-919)."""

    @_bootstrap_option
    @click.option(
        "--bootstrap-controller",
        metavar="HOST:PORT,...",
        help="Controllers to connect to instead of brokers, by the address of their controller listener.",
    )
    @_config_option
    @_timeout_option
    @wraps(command)
    def run(
        bootstrap_server: str,
        bootstrap_controller: str | None,
        command_config: str | None,
        request_timeout_ms: int,
        *args: P.args,
        **options: P.kwargs,
    ) -> None:
        of_controllers = bootstrap_controller is not None
        address = bootstrap_controller or bootstrap_server
        with connect(address, request_timeout_ms, of_controllers, command_config) as cluster:
            command(cluster, *args, **options)

    return run


def connect(
    bootstrap: str, timeout_ms: int, of_controllers: bool = False, command_config: str | None = None
) -> ClusterClient:
    """A client of the cluster; it connects with the first request. Raises `click.UsageError` for a bad address or a bad
    configuration."""
    from kalda.client.cluster_client import ClusterClient

    security = None if command_config is None else _security_of(command_config)
    try:
        return ClusterClient(
            bootstrap,
            client_id="kalda-cli",
            timeout_ms=timeout_ms,
            of_controllers=of_controllers,
            security=security,
        )
    except ValueError as error:
        option = "--bootstrap-controller" if of_controllers else "--bootstrap-server"
        raise click.UsageError(f"{option}: {error}") from error


def _security_of(path: str) -> ClientSecurity | None:
    """TLS and SASL by a file of `--command-config`; None for plain text. Keys of other areas are passed over: the files
    of Kafka's tools have them."""
    from kalda.base.configs.admin import ADMIN
    from kalda.client.config_files import read_config
    from kalda.network.client_security import require

    given = read_config(path) or {}
    try:
        values = ADMIN.parse({name: str(value) for name, value in given.items() if name in ADMIN})
        return require(values)
    except (ApiError, ValueError) as error:
        raise click.UsageError(f"--command-config {path}: {getattr(error, 'message', None) or error}") from error


def parse_pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` texts as a dict; the value may contain any characters, also = and commas."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {text}: KEY=VALUE is expected")
        pairs[key.strip()] = value
    return pairs


def unescape(option: str, text: str) -> bytes:
    r"""The text of an option with escapes such as `\t` replaced, for characters that are hard to type in a shell."""
    try:
        plain = text.encode("raw_unicode_escape").decode("unicode_escape") if "\\" in text else text
        return plain.encode()
    except UnicodeError as error:
        raise click.UsageError(f"{option} {text}: {error}; a backslash is written \\\\") from None
