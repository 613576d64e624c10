"""`kalda explain`: why a client is throttled, what allows an operation, why a group lags or rebalances.

The metrics listener of a node serves the paths below `/explain/` (`broker/metrics/metrics_export.py`); the lag of a
group is measured here (`cli/groups.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kalda.base.texts import printable
from kalda.cli.common.completing import complete_group
from kalda.cli.common.failures import Failure
from kalda.cli.common.metrics_pages import node_option, read_all
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import counted, is_json, print_json, print_table
from kalda.cli.common.session import json_option, with_cluster
from kalda.cli.groups import PartitionLag, findings, lags, measure, span, unread_ages

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin


_SHOWN_DECISIONS = 10


@click.group(cls=Noun)
def explain() -> None:
    """Explain what a broker decides about a client."""


@explain.command("throttle")
@click.option("--client-id", "client_id", metavar="ID", required=True, help="The client id.")
@click.option("--user", default="ANONYMOUS", show_default=True, help="The user that the client authenticates as.")
@node_option
@json_option
@with_cluster
def throttle_command(admin: CommandAdmin, client_id: str, user: str, node_id: int | None) -> None:
    """Explain why a client is throttled, or not: whose quota applies, what was used, the last decisions.

    The pause X of a client whose rate is O, under a quota of T, measured over W, is (O - T) / T * W. With --json, all
    of the last hundred decisions are printed. The brokers need `kalda.metrics.listener`.

    \b
    Example:
      kalda explain throttle --client-id loader --user alice
    """
    found = read_all(admin, "/explain/throttle", node_id, user=user, client=client_id)
    if is_json():
        print_json(found)
        return
    for node in found:
        for quota in node["quotas"]:
            click.echo(f"\nbroker {node['node']}, {quota['quota']}")
            _print_quota(quota, node["now_ms"])


@explain.command("access")
@click.option("--principal", metavar="PRINCIPAL", required=True, help="As User:alice.")
@click.option("--operation", metavar="NAME", required=True, help="As Read, Write, Describe, ClusterAction.")
@click.option("--resource", metavar="TYPE:NAME", required=True, help="As topic:orders, group:billing, cluster.")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where the client connects from."
)
@node_option
@json_option
@with_cluster
def access_command(
    admin: CommandAdmin, principal: str, operation: str, resource: str, host: str, node_id: int | None
) -> None:
    """Explain what allows or denies an operation: which entry decides, and in which order entries are read.

    The offset of an entry is that of the first metadata image of the broker that had it. The brokers need
    `kalda.metrics.listener`.

    \b
    Example:
      kalda explain access --principal User:alice --operation Read --resource topic:orders
    """
    kind, _, name = resource.partition(":")
    query = {
        "principal": principal,
        "operation": _upper(operation),
        "type": _upper(kind),
        "resource": name or "kafka-cluster",
        "host": host,
    }
    found = read_all(admin, "/explain/access", node_id, **query)
    if is_json():
        print_json(found)
        return
    for node in found:
        if "error" in node:
            raise click.ClickException(f"broker {node['node']}: {node['error']}")
        _print_access(node)


@explain.command("lag")
@click.argument("group", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--for", "seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, metavar="SECONDS",
    help="How long rates are measured: longer than the members' auto.commit.interval.ms, which is 5 s.",
)  # fmt: skip
@json_option
@with_cluster
def lag_command(admin: CommandAdmin, group: str, seconds: float) -> None:
    """Explain why a group lags: rates, slow members, skew, open transactions, when it is caught up or loses records.

    Its offsets are read twice. A member's rate is that of its commits.

    \b
    Example:
      kalda explain lag billing
    """
    described = admin.describe_groups([group]).value(group)
    before, after = measure(admin, described, seconds)
    described = admin.describe_groups([group]).value(group)
    found = lags(described, before, after)
    sentences = findings(described, before, after, unread_ages(admin, found))
    if is_json():
        rows = [
            {**asdict(each), "partition": each.partition._asdict(), "caught_up_s": each.caught_up_s} for each in found
        ]
        print_json({"group": group, "state": described.state, "seconds": seconds, "lag": rows, "findings": sentences})
        return
    print_table(
        ("TOPIC", "PARTITION", "LAG", "PRODUCED/S", "READ/S", "CAUGHT-UP-IN", "MEMBER"),
        [
            (*each.partition, each.lag, f"{each.produced:.1f}", f"{each.consumed:.1f}", _caught_up(each), each.member)
            for each in found
        ],
    )
    for sentence in sentences:
        click.echo(printable(f"- {sentence}"))


def _caught_up(lag: PartitionLag) -> str | None:
    if lag.lag is None:
        return None
    return "never" if lag.caught_up_s is None else span(lag.caught_up_s)


@explain.command("rebalance")
@click.argument("group", metavar="GROUP", shell_complete=complete_group)
@node_option
@json_option
@with_cluster
def rebalance_command(admin: CommandAdmin, group: str, node_id: int | None) -> None:
    """Explain why a group rebalances: what caused its last rebalances, who waits for whom now.

    The broker that coordinates the group has the last ten, and one that coordinated it before may have others.
    The brokers need `kalda.metrics.listener`.

    \b
    Example:
      kalda explain rebalance billing
    """
    asked = read_all(admin, "/explain/rebalance", node_id, group=group)
    found = [each for each in asked if each["error"] is None or each["rebalances"]]
    if not found:
        reasons = ", ".join(f"broker {each['node']}: {each['error']}" for each in asked)
        raise Failure(f"no broker that serves metrics coordinates a group {group!r}: {reasons}")
    if is_json():
        print_json(found)
        return
    for node in found:
        print_rebalances(node)


def _upper(name: str) -> str:
    """`ClusterAction` and `cluster-action` as `CLUSTER_ACTION`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    return words.replace("-", "_").upper()


def _print_access(node: dict[str, Any]) -> None:
    word = "allowed" if node["allowed"] else "denied"
    decision = (
        f"broker {node['node']}: {node['principal']} from {node['host']} is {word} {node['operation']} on "
        f"{node['resource_type']} {node['resource_name']}, by {node['rule']}, in the metadata up to {node['offset']}"
    )
    click.echo(f"\n{printable(decision)}")
    decided = node["decided_by"]
    for pattern in node["patterns"]:
        click.echo(printable(f"  {pattern['type']} {pattern['name']}: {pattern['of_others']} entries of others"))
        rows = []
        for each in pattern["entries"]:
            what = each["skipped"] or ("decides" if each == decided else "applies")
            rows.append(
                (f"    {each['permission']}", each["operation"], each["principal"], each["host"], each["offset"], what)
            )
        if rows:
            print_table(("    PERMISSION", "OPERATION", "PRINCIPAL", "HOST", "OFFSET", ""), rows)
    if not node["patterns"] and node["rule"] != "SuperUser":
        click.echo("  no entry applies to the resource")


def _print_quota(quota: dict[str, Any], now_ms: int) -> None:
    if "decided_by" in quota:
        click.echo(f"  {quota['decided_by']} decides, the class of client.quota.callback.class")
    elif quota["entity"] is None:
        click.echo("  none of the eight steps finds a quota: the client is not limited")
        return
    else:
        rows = [
            (step["step"], step["entity"], step["limit"], "applies" if step["counts"] else "")
            for step in quota["steps"]
        ]
        print_table(("  STEP", "ENTITY", "LIMIT", "FOUND"), [(f"  {row[0]}", *row[1:]) for row in rows])
        click.echo(f"  used together by {printable(quota['shared_by'])}")
    if not quota["used"]:
        click.echo("  no request was charged yet")
        return
    if "tokens" in quota:
        _print_tokens(quota)
    else:
        _print_rate(quota)
    decisions = quota["decisions"][-_SHOWN_DECISIONS:]
    if decisions:
        click.echo(f"  the last {len(decisions)} of its requests that were throttled:")
        print_table(
            ("  SECONDS-AGO", "RECORDED", "O", "T", "W-MS", "X-MS"),
            [
                (
                    f"  {(now_ms - each['now_ms']) / 1000:.1f}",
                    f"{each['recorded']:.6g}",
                    f"{each['observed']:.6g}",
                    f"{each['bound']:.15g}",
                    each["window_ms"] or None,
                    each["throttle_ms"],
                )
                for each in decisions
            ],
        )


def _print_rate(quota: dict[str, Any]) -> None:
    unit = quota["unit"]
    limit = "none" if quota["limit"] is None else f"{quota['limit']:.15g}"
    click.echo(
        f"  O = {quota['observed']:.6g} {unit}, T = {limit}, W = {quota['window_ms']} ms, "
        f"X = {quota['throttle_ms']} ms, after {quota['requests']} requests"
    )
    if quota["needed"] is not None:
        click.echo(f"  not throttled with a quota of {quota['needed']:.6g} {unit}, or after the pause")
    elif quota["left"] is not None:
        amount = "bytes" if unit == "bytes/s" else "percent of a second"
        click.echo(f"  within its quota: {quota['left']:.6g} {amount} more are free now")


def _print_tokens(quota: dict[str, Any]) -> None:
    if quota["limit"] is None:
        click.echo("  no limit")
        return
    click.echo(
        f"  {quota['tokens']:.6g} tokens, T = {quota['limit']:.15g} {quota['unit']}, X = {quota['throttle_ms']} ms, "
        f"after {quota['requests']} requests"
    )
    if quota["tokens"] < 0:
        click.echo("  refused, or throttled, until the tokens are 0 again")


def print_rebalances(node: dict[str, Any]) -> None:
    """What one broker has answered."""
    now_ms, rebalances, waits = node["now_ms"], node["rebalances"], node.get("waits")
    click.echo()
    _print_lines(_present(node))
    if waits is not None:
        _print_members("AWAITED", waits["awaited"], "SESSION-LEFT-SECONDS", lambda each: each["session_left_ms"])
        _print_members("WAITING", waits["waiting"], "FOR-SECONDS", lambda each: _elapsed(each["since_ms"], now_ms))
    if rebalances:
        click.echo(f"  the last {counted(len(rebalances), 'rebalance')} here, the newest first:")
    else:
        click.echo("  it has not rebalanced here")
    for each in reversed(rebalances):
        _print_lines(_rebalance(each, now_ms))


def _word(of: dict[str, Any]) -> str:
    """Of a group, or of a rebalance."""
    return "generation" if of["type"] == "classic" else "epoch"


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _elapsed(since_ms: int | None, now_ms: int) -> int | None:
    return None if since_ms is None else now_ms - since_ms


def _present(node: dict[str, Any]) -> Iterable[str]:
    if node["error"] is not None:
        yield f"broker {node['node']} does not have the state of {node['group']}: {node['error']}"
        return
    yield (
        f"broker {node['node']} coordinates {node['group']}, a {node['type']} group: {node['state']}, "
        f"{_word(node)} {node['generation']}, {counted(node['members'], 'member')}"
    )
    waits = node["waits"]
    if waits is None:
        yield "  no member waits"
        return
    of = f" of {counted(waits['awaited_count'], 'member')}" if waits["awaited_count"] else ""
    most = "" if waits["left_ms"] is None else f", for {_seconds(waits['left_ms'])} at most"
    one = waits["waiting_count"] == 1
    yield f"  {counted(waits['waiting_count'], 'member')} {'waits' if one else 'wait'} for {waits['for']}{of}{most}"
    if waits["pending"]:
        yield f"  member ids that were given out, and have not joined: {', '.join(waits['pending'])}"


def _print_members(
    title: str, members: list[dict[str, Any]], column: str, ms_of: Callable[[dict[str, Any]], int | None]
) -> None:
    rows = []
    for each in members:
        ms = ms_of(each)
        seconds = None if ms is None else f"{ms / 1000:.1f}"
        rows.append((f"  {each['member_id']}", each["instance_id"], each["client_id"], each["host"], seconds))
    if rows:
        print_table((f"  {title}", "INSTANCE", "CLIENT", "HOST", column), rows)


def _rebalance(each: dict[str, Any], now_ms: int) -> Iterable[str]:
    started = each["started_ms"]
    generations = f"after {_word(each)} {each['generation']}"
    if each["next_generation"] is not None:
        generations = f"{_word(each)} {each['generation']} to {each['next_generation']}"
    members = "" if each["members"] is None else f", {counted(each['members'], 'member')}"
    how = "under way" if each["ended_ms"] is None else f"{each['outcome']} after {_seconds(each['ended_ms'] - started)}"
    yield f"  {_seconds(now_ms - started)} ago, {generations}{members}: {how}"
    for number, cause in enumerate(each["causes"]):
        reason = f": {cause['reason']}" if cause["reason"] else ""
        who = _members(cause["members"], cause["member_count"])
        yield f"    {'then' if number else 'cause'}: {who}{' ' if who else ''}{cause['what']}{reason}"
    if each["cause_count"] > len(each["causes"]):
        yield f"    then: {each['cause_count'] - len(each['causes'])} causes more"
    if each["assigned_ms"] is not None:
        line = f"    the target was computed in {_seconds(each['assigned_ms'] - started)}"
        if each["last_member"] is not None:
            last = f"{_member(each['last_member'])} after {_seconds(each['last_ms'] - started)}"
            line += f", the last that came to it was {last}"
        yield line
    if each["joined_ms"] is not None:
        joined = f"    members joined in {_seconds(each['joined_ms'] - started)}"
        yield f"{joined}, the last was {_member(each['last_member'])} after {_seconds(each['last_ms'] - started)}"
        if each["ended_ms"] is not None:
            yield f"    the leader's assignment came and was stored in {_seconds(each['ended_ms'] - each['joined_ms'])}"
    if each["removed_count"]:
        yield f"    removed, since they did not join: {_members(each['removed'], each['removed_count'])}"


def _members(members: list[dict[str, Any]], count: int) -> str:
    text = ", ".join(map(_member, members))
    return text if count <= len(members) else f"{text} and {count - len(members)} more"


def _member(member: dict[str, Any]) -> str:
    instance = "" if member["instance_id"] is None else f"instance {member['instance_id']}, "
    return f"{member['member_id']} ({instance}client {member['client_id']}, {member['host']})"


def _seconds(ms: int) -> str:
    return f"{max(ms, 0) / 1000:.1f} s"
