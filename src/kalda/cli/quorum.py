"""`kalda quorum`: describe the metadata quorum, add and remove voters, unregister controllers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kalda.base.ids import Uuid, uuid_from_text, uuid_to_text
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, is_json, print_json, print_table, report_option, say, yes_option
from kalda.cli.common.session import json_option, with_cluster_or_controllers
from kalda.cli.common.times import show_time

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.quorum import Quorum, QuorumReplica, VoterListener


@click.group(cls=Noun)
def quorum() -> None:
    """The metadata quorum: leader, voters, observers."""


_dry_run_option = click.option("--dry-run", is_flag=True, help="Check the change, and do not make it.")


@quorum.command("describe")
@click.option("--status", "show_status", is_flag=True, help="Show only leader, epoch, high watermark, greatest lag.")
@click.option("--replication", "show_replication", is_flag=True, help="Show only the replicas and their offsets.")
@json_option
@with_cluster_or_controllers
def describe_command(admin: CommandAdmin, show_status: bool, show_replication: bool) -> None:
    """Describe the quorum's status and its replicas.

    \b
    Examples:
      kalda quorum describe
      kalda quorum describe --replication
      kalda quorum describe --bootstrap-controller localhost:9093
    """
    cluster_id = admin.describe_cluster().cluster_id
    found = admin.describe_quorum()
    if is_json():
        print_json(
            {
                **_status(cluster_id, found),
                "voters": [_as_json(replica, found) for replica in found.voters],
                "observers": [_as_json(replica, found) for replica in found.observers],
            }
        )
        return
    if show_status or not show_replication:
        for key, value in _status(cluster_id, found).items():
            click.echo(f"{_title(key):<22}{value}")
    if show_status == show_replication:
        click.echo()
    if show_replication or not show_status:
        columns = ("NODE", "DIRECTORY", "LOG-END-OFFSET", "LAG", "LAST-FETCH", "LAST-CAUGHT-UP", "STATUS", "ENDPOINTS")
        print_table(
            columns, [tuple(_as_json(replica, found).values()) for replica in (*found.voters, *found.observers)]
        )


def _title(key: str) -> str:
    return "".join(word.capitalize() for word in key.split("_")) + ":"


def _status(cluster_id: str, found: Quorum) -> dict[str, object]:
    now_ms = time.time() * 1000
    behind = [
        max(0, int(now_ms - voter.last_caught_up_timestamp))
        for voter in found.voters
        if voter.node_id != found.leader_id and voter.last_caught_up_timestamp >= 0
    ]
    return {
        "cluster_id": cluster_id,
        "leader_id": found.leader_id,
        "leader_epoch": found.leader_epoch,
        "high_watermark": found.high_watermark,
        "max_follower_lag": max((voter.lag for voter in found.voters), default=0),
        "max_follower_lag_time_ms": max(behind, default=0),
    }


def _as_json(replica: QuorumReplica, found: Quorum) -> dict[str, object]:
    if replica.node_id == found.leader_id:
        status = "Leader"
    else:
        status = "Follower" if replica in found.voters else "Observer"
    return {
        "node_id": replica.node_id,
        "directory_id": uuid_to_text(replica.directory_id),
        "log_end_offset": replica.log_end_offset,
        "lag": replica.lag,
        "last_fetch": show_time(replica.last_fetch_timestamp),
        "last_caught_up": show_time(replica.last_caught_up_timestamp),
        "status": status,
        "endpoints": found.endpoints.get(replica.node_id, ()),
    }


@quorum.command("add-controller")
@click.option(
    "-c",
    "--config",
    "config_file",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="The controller's server.properties.",
)
@_dry_run_option
@json_option
@with_cluster_or_controllers
def add_controller_command(admin: CommandAdmin, config_file: str, dry_run: bool) -> None:
    """Make a controller a voter. It must be running, formatted with --no-initial-controllers, and have caught up.

    Its id and listeners are read from FILE, its directory id from the metadata directory that FILE names; so run this
    on the controller's host.

    \b
    Examples:
      kalda quorum add-controller --config controller4.properties --dry-run
      kalda quorum add-controller --config controller4.properties
    """
    node_id, directory_id, listeners = _controller_of(config_file)
    if not dry_run:
        admin.add_voter(node_id, directory_id, listeners)
    endpoints = [str(listener) for listener in listeners]
    if is_json():
        _print_change(node_id, directory_id, dry_run, endpoints=endpoints)
        return
    done = "Would add" if dry_run else "Added"
    click.echo(
        f"{done} controller {node_id} with directory id {uuid_to_text(directory_id)} and endpoints: "
        f"{', '.join(endpoints)}"
    )


@quorum.command("remove-controller")
@click.option("--controller-id", "node_id", type=click.IntRange(min=0), required=True, help="The controller's node id.")
@click.option(
    "--controller-directory-id",
    "directory",
    metavar="ID",
    help="Its directory id, as describe shows it. [default: that of the voter with this node id]",
)
@_dry_run_option
@yes_option
@json_option
@with_cluster_or_controllers
def remove_controller_command(
    admin: CommandAdmin, node_id: int, directory: str | None, dry_run: bool, yes: bool
) -> None:
    """Remove a controller from the voters. It becomes an observer, and can be stopped.

    The directory id distinguishes a controller that was formatted again from the voter with the same node id.

    \b
    Examples:
      kalda quorum remove-controller --controller-id 3 --dry-run
      kalda quorum remove-controller --controller-id 3 --yes
    """
    if directory is not None:
        try:
            directory_id = uuid_from_text(directory)
        except ValueError as error:
            raise click.UsageError(f"--controller-directory-id: {error}") from error
    else:
        voters = admin.describe_quorum().voters
        found = [voter.directory_id for voter in voters if voter.node_id == node_id]
        if not found:
            voter_ids = ", ".join(str(voter.node_id) for voter in voters)
            raise Failure(f"node {node_id} is not a voter; the voters are {voter_ids}")
        directory_id = found[0]
    if not dry_run:
        confirm(f"Remove controller {node_id} with directory id {uuid_to_text(directory_id)} from the voters?", yes)
        admin.remove_voter(node_id, directory_id)
    if is_json():
        _print_change(node_id, directory_id, dry_run)
        return
    done = "Would remove" if dry_run else "Removed"
    click.echo(f"{done} controller {node_id} with directory id {uuid_to_text(directory_id)}")


@quorum.command("unregister-controller")
@click.option("--controller-id", "node_id", type=click.IntRange(min=0), required=True, help="The controller's node id.")
@yes_option
@report_option
@with_cluster_or_controllers
def unregister_controller_command(admin: CommandAdmin, node_id: int, yes: bool) -> None:
    """Remove the registration of a controller that was taken out of service for good.

    While it is registered, features are not raised beyond what it supports. Remove it from the voters before, and stop
    it: a controller that runs registers again. The cluster needs metadata.version 4.4-IV2.

    \b
    Example:
      kalda quorum unregister-controller --controller-id 3 --yes
    """
    confirm(f"Remove the registration of controller {node_id}?", yes)
    admin.unregister_controller(node_id)
    say(f"Controller {node_id} is no longer registered.", controller=node_id)


def _print_change(node_id: int, directory_id: Uuid, dry_run: bool, **more: object) -> None:
    print_json({"node_id": node_id, "directory_id": uuid_to_text(directory_id), **more, "executed": not dry_run})


def _controller_of(config_file: str) -> tuple[int, Uuid, list[VoterListener]]:
    """Node id, directory id and listeners of the controller with these properties."""
    from kalda.base.configs.definition import InvalidConfig
    from kalda.base.configs.server import ServerConfig
    from kalda.broker.process.disk import RealDisk
    from kalda.client.admin.quorum import VoterListener
    from kalda.metadata.meta_properties import MetaPropertiesEnsemble
    from kalda.network.config_providers import read_properties

    try:
        config = ServerConfig(read_properties(config_file))
    except InvalidConfig as error:
        raise Failure(f"{config_file}: {error.message}") from error
    except ValueError as error:
        raise Failure(str(error)) from error
    if not config.is_controller:
        raise Failure(f"{config_file}: process.roles does not have the controller role")
    directory = config.metadata_log_dir
    ensemble = MetaPropertiesEnsemble.load(RealDisk(), [directory], directory)
    identity = ensemble.properties.get(directory)
    if identity is None:
        reason = ensemble.errors.get(directory, "it is not formatted")
        raise Failure(f"the metadata directory {directory} of {config_file}: {reason}")
    if identity.node_id != config.node_id:
        raise Failure(f"{config_file} has node.id {config.node_id}, but {directory} belongs to node {identity.node_id}")
    if identity.directory_id is None:
        raise Failure(f"{directory} has no directory id yet: start the controller once")
    listeners = [
        VoterListener(
            endpoint.listener,
            "localhost" if endpoint.host in ("", "0.0.0.0", "::") else endpoint.host,
            endpoint.port,
        )
        for endpoint in config.advertised_controller_listeners
    ]
    return config.node_id, identity.directory_id, listeners
