"""How `kalda explain rebalance` prints who waits for whom in a group, and what caused its last rebalances."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from kalda.base.printable import printable
from kalda.cli.common.output import counted, print_table


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
