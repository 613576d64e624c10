"""`kalda storage`: format a node's log directories and describe them, with the flags and messages of Kafka's tool."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import click

from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.server import ServerConfig
from kalda.base.ids import Uuid, random_uuid, uuid_to_text
from kalda.broker.process.disk import RealDisk
from kalda.cli.common.nouns import Noun
from kalda.cli.common.os_errors import sentence
from kalda.cli.common.output import report_option, say
from kalda.cli.local.single_node import DEFAULT_PORT, properties_text
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.metadata.features import FEATURES, LATEST_PRODUCTION, MINIMUM, default_levels, from_level
from kalda.metadata.formatter import FormatError, FormatRequest, QuorumChoice, format_storage, parse_release_version
from kalda.metadata.meta_properties import MetaPropertiesEnsemble
from kalda.network.config_providers import read_properties
from kalda.raft.voters import VoterEndpoint
from kalda.storage.checkpoints import META_PROPERTIES_FILE

_RELEASES = f"The minimum is {MINIMUM}; the default is {LATEST_PRODUCTION}."


_ANY_HOST = ("", "0.0.0.0", "::")


def _new_id() -> Uuid:
    return random_uuid(os.urandom)


def _fail(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(1)


def _config_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "-c", "--config", "config_file", required=True, metavar="FILE", help="The server.properties of the node."
    )(command)


def _read_config(config_file: str) -> ServerConfig:
    try:
        return ServerConfig(read_properties(config_file))
    except InvalidConfig as error:
        _fail(f"{config_file}: {error.message}")
    except OSError as error:
        _fail(f"Cannot read {config_file}: {sentence(error, config_file)}")
    except ValueError as error:
        _fail(f"Cannot read {error}")


def _controller_endpoint(config: ServerConfig) -> VoterEndpoint:
    """The address of this node's controller for the other voters. A listener on all interfaces is `localhost`."""
    name = config.controller_listener_names[0]
    if not config.is_controller:
        return VoterEndpoint(name, "", 0)
    advertised = config.advertised_controller_listeners[0]
    return VoterEndpoint(name, "localhost" if advertised.host in _ANY_HOST else advertised.host, advertised.port)


@click.group(cls=Noun)
def storage() -> None:
    """Format the log directories of a node, and describe them.

    \b
    Example:
      kalda storage format -t $(kalda storage random-uuid) -c server.properties --standalone
    """


@storage.command("random-uuid")
@report_option
def random_uuid_command() -> None:
    """Print a random UUID, for a cluster or a log directory.

    \b
    Example:
      kalda storage random-uuid
    """
    say(uuid_to_text(_new_id()))


@storage.command("properties")
@click.option("--port", type=click.IntRange(1, 65_534), default=DEFAULT_PORT, show_default=True,
    help="Where the node listens for clients; its controller has the next port.")  # fmt: skip
@click.option(
    "--log-dirs", metavar="DIRECTORY,...", default="kalda-logs", show_default=True, help="Where records are kept."
)
def properties_command(port: int, log_dirs: str) -> None:
    """Print the server.properties of a single node, to begin with.

    \b
    Example:
      kalda storage properties --port 9192 > server.properties
    """
    click.echo(properties_text(log_dirs, port), nl=False)


@storage.command("format")
@_config_option
@click.option("-t", "--cluster-id", required=True, help="The id of the cluster, as random-uuid makes it.")
@click.option("-s", "--standalone", is_flag=True, help="This controller is the only initial voter of the quorum.")
@click.option(
    "-I",
    "--initial-controllers",
    metavar="ID@HOST:PORT:DIRECTORY,...",
    help="The initial voters of the quorum. The same for all nodes.",
)
@click.option("-N", "--no-initial-controllers", is_flag=True, help="This node will join an existing quorum.")
@click.option(
    "-r", "--release-version", metavar="RELEASE", help=f"Initial feature levels: those of a release. {_RELEASES}"
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="FEATURE=LEVEL",
    help="Initial level of a feature. May be repeated.",
)
@click.option("-g", "--ignore-formatted", is_flag=True, help="Leave formatted directories as they are.")
@click.option(
    "-S",
    "--add-scram",
    multiple=True,
    metavar="CREDENTIAL",
    help="An initial SCRAM credential: SCRAM-SHA-256=[name=alice,password=alice-secret]",
)
@report_option
def format_command(
    config_file: str,
    cluster_id: str,
    standalone: bool,
    initial_controllers: str | None,
    no_initial_controllers: bool,
    release_version: str | None,
    features: tuple[str, ...],
    ignore_formatted: bool,
    add_scram: tuple[str, ...],
) -> None:
    """Format the log directories of a node.

    \b
    Examples:
      kalda storage format -t $(kalda storage random-uuid) -c server.properties --standalone
      kalda storage format -t $(kalda cluster id) -c server.properties --no-initial-controllers
    """
    chosen = [
        choice
        for choice, given in (
            (QuorumChoice.STANDALONE, standalone),
            (QuorumChoice.INITIAL_CONTROLLERS, initial_controllers is not None),
            (QuorumChoice.NO_INITIAL_CONTROLLERS, no_initial_controllers),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{chosen[1].value} is not allowed with {chosen[0].value}")
    config = _read_config(config_file)
    request = FormatRequest(
        cluster_id=cluster_id,
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=config.is_controller,
        controller_endpoint=_controller_endpoint(config),
        has_static_voters=bool(config.voters),
        quorum=chosen[0] if chosen else QuorumChoice.UNSPECIFIED,
        initial_controllers=initial_controllers or "",
        release_version=release_version,
        feature_levels=_feature_levels(features),
        scram_arguments=add_scram,
        ignore_formatted=ignore_formatted,
        unstable=bool(config["unstable.feature.versions.enable"]),
    )
    now_ms = time.time_ns() // 1_000_000
    try:
        format_storage(RealDisk(), request, new_id=_new_id, entropy=os.urandom, now_ms=now_ms, say=say)
    except FormatError as error:
        _fail(str(error))
    except OSError as error:
        _fail(sentence(error))


def _feature_levels(features: tuple[str, ...]) -> dict[str, int]:
    levels = {}
    for text in features:
        name, equals, level = text.partition("=")
        if not equals:
            _fail(f"Can't parse feature=level string {text}: equals sign not found.")
        try:
            levels[name.strip()] = int(level)
        except ValueError:
            _fail(f"Can't parse feature=level string {text}: unable to parse {level} as a short.")
    return levels


@storage.command("info")
@_config_option
@report_option
def info_command(config_file: str) -> None:
    """Describe the log directories of a node and their problems. Exits with 1 if there is a problem.

    \b
    Example:
      kalda storage info -c server.properties
    """
    config = _read_config(config_file)
    disk = RealDisk()
    found: list[str] = []
    problems: list[str] = []
    ensemble = MetaPropertiesEnsemble.load(disk, config.log_dirs, config.metadata_log_dir)
    first = None
    for log_dir in sorted((*ensemble.properties, *ensemble.empty_dirs, *ensemble.errors)):
        if disk.stat(log_dir) is None:
            problems.append(f"{log_dir} does not exist")
            continue
        if not os.path.isdir(log_dir):
            problems.append(f"{log_dir} is not a directory")
            continue
        found.append(log_dir)
        if log_dir in ensemble.empty_dirs:
            problems.append(f"{log_dir} is not formatted.")
        elif log_dir in ensemble.errors:
            problems.append(f"Error loading {log_dir}/{META_PROPERTIES_FILE}: {ensemble.errors[log_dir]}")
        else:
            properties = ensemble.properties[log_dir]
            first = first or properties
            if properties.cluster_id != first.cluster_id:
                problems.append("Mismatched cluster IDs between storage directories.")
            elif properties.node_id != first.node_id:
                problems.append("Mismatched node IDs between storage directories.")
    if first is not None and first.version == 0:
        problems.append(
            "The kafka configuration file appears to be for a cluster in KRaft mode, but the directories are "
            "formatted for legacy mode."
        )
    if found:
        _show("Found log directories:" if len(found) > 1 else "Found log directory:", found)
    if first is not None:
        say(f"Found metadata: {first}\n")
    if problems:
        _show("Found problems:" if len(problems) > 1 else "Found problem:", problems)
        sys.exit(1)


def _show(title: str, lines: list[str]) -> None:
    say("\n".join([title, *(f"  {line}" for line in lines)]) + "\n")


@storage.command("version-mapping")
@click.option("-r", "--release-version", default=str(LATEST_PRODUCTION), help=f"The release to look up. {_RELEASES}")
@report_option
def version_mapping_command(release_version: str) -> None:
    """Print the initial feature levels of a cluster of a release.

    \b
    Example:
      kalda storage version-mapping --release-version 4.0
    """
    try:
        version = parse_release_version(release_version, unstable=True)
    except ValueError as error:
        _fail(str(error))
    say(f"{METADATA_VERSION}={version.value} ({release_version})")
    for name, level in default_levels(version).items():
        say(f"{name}={level}")


@storage.command("feature-dependencies")
@click.option("--feature", "features", multiple=True, required=True, metavar="FEATURE=LEVEL", help="May be repeated.")
@report_option
def feature_dependencies_command(features: tuple[str, ...]) -> None:
    """Print the feature levels that the level of a feature requires.

    \b
    Example:
      kalda storage feature-dependencies --feature transaction.version=2
    """
    for text in features:
        name, equals, level_text = text.partition("=")
        if not equals or not level_text.strip().isdecimal():
            _fail(f"Invalid feature format: {text}. Expected format: 'feature=version' (e.g. 'group.version=1')")
        level = int(level_text)
        if name == METADATA_VERSION:
            try:
                say(f"{name}={level} ({from_level(level)}) has no dependencies.")
            except ValueError:
                _fail(f"Unknown {METADATA_VERSION} {level}")
            continue
        if name not in FEATURES:
            _fail(f"Unknown feature: {name}")
        try:
            needs = FEATURES[name].at(level).depends_on
        except ValueError:
            _fail(f"Feature level {level} is not supported for feature {name}")
        say(f"{name}={level} requires:" if needs else f"{name}={level} has no dependencies.")
        for dependency, needed in needs:
            shown = f" ({from_level(needed)})" if dependency == METADATA_VERSION else ""
            say(f"    {dependency}={needed}{shown}")
