"""`kalda version`: what a report of a fault begins with."""

from __future__ import annotations

from collections.abc import Mapping

import click

from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import is_json, print_json
from kalda.cli.common.session import connect, json_option, with_config

_TIMEOUT_MS = 30_000


@click.command(cls=KaldaCommand)
@click.option("-b", "--bootstrap-server", metavar="HOST:PORT,...", help="Show the version of this cluster too.")
@json_option
@with_config
def version(bootstrap_server: str | None, config: Mapping[str, object]) -> None:
    """Show the versions of Kalda, of Kafka's protocol, of Python and of the system; with -b or --profile, those of the
    cluster too. Brokers do not say which software they are, but up to which release of Kafka they have its features.

    \b
    Examples:
      kalda version
      kalda version --bootstrap-server localhost:9092
    """
    import platform
    import sys

    import kalda
    from kalda.metadata.features import LATEST_PRODUCTION
    from kalda.records import scan
    from kalda.records._uncompiled import ADVICE

    found = {
        "kalda": kalda.__version__,
        "metadata_version": str(LATEST_PRODUCTION),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiled": not str(scan.__file__).endswith(".py"),
        "path": sys.executable,
    }
    if bootstrap_server is not None or "bootstrap.servers" in config:
        found.update(_of_cluster(bootstrap_server, config))
    if is_json():
        print_json(found)
        return
    width = max(map(len, found)) + 2
    for name, value in found.items():
        text = ("yes" if value else f"no: {ADVICE}") if name == "compiled" else value
        click.echo(f"{name.replace('_', ' '):<{width}}{text}")


def _of_cluster(bootstrap_server: str | None, config: Mapping[str, object]) -> dict[str, object]:
    """Raises `ApiError`."""
    from kalda.metadata.features import FEATURE_NAME, from_level

    def named(level: int) -> str:
        try:
            return str(from_level(level))
        except ValueError:
            return f"level {level}, of a later release"

    with connect(bootstrap_server, _TIMEOUT_MS, config=config) as admin:
        cluster = admin.describe_cluster()
        features = {each.name: each for each in admin.describe_features().features}
    level = features[FEATURE_NAME]
    return {
        "cluster": cluster.cluster_id,
        "brokers": len(cluster.nodes),
        "brokers_support": named(level.supported_max),
        "cluster_metadata_version": named(level.finalized),
    }
