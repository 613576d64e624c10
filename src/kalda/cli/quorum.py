"""`kalda quorum`: the metadata quorum as its leader sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kalda.base.ids import uuid_to_text
from kalda.cli.output import print_json, print_table
from kalda.cli.session import json_option, with_cluster
from kalda.cli.times import show_time

if TYPE_CHECKING:
    from kalda.client.admin.quorum import Quorum, QuorumReplica
    from kalda.client.cluster import Cluster


@click.group()
def quorum() -> None:
    """The metadata quorum: leader, voters, observers."""


@quorum.command("describe")
@click.option("--status", "show_status", is_flag=True, help="Only leader, epoch, high watermark, greatest lag.")
@click.option("--replication", "show_replication", is_flag=True, help="Only the replicas, and how far each has come.")
@json_option
@with_cluster
def describe_command(cluster: Cluster, show_status: bool, show_replication: bool, as_json: bool) -> None:
    """Describe the quorum's status and its replicas.

    \b
    Examples:
      kalda quorum describe
      kalda quorum describe --replication
    """
    from kalda.client.admin.nodes import describe_cluster
    from kalda.client.admin.quorum import describe_quorum

    cluster_id = describe_cluster(cluster).cluster_id
    found = describe_quorum(cluster)
    if as_json:
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
