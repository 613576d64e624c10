"""Stop nodes one after the other, so that each moves its leaderships to the remaining ones (a controlled shutdown).

A controlled shutdown needs the active controller and a majority of the quorum. So brokers stop first, then voters as
long as a majority remains, the active controller last of these; the remaining voters are stopped together. As soon as
there is no majority, no controlled shutdown can succeed, and the others get a second SIGTERM, which ends their wait for
one. So does a node that has not stopped when most of its time is over, since a handover may take minutes. A node that
has not stopped within the timeout is killed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.cli.local.layout import ClusterLayout, NodePlace
from kalda.cli.local.process import NodeProcess, wait_until_ended
from kalda.cli.local.starting import process_of

_TIMEOUT_MS = 1_500
_KILL_S = 10.0
_POLL_S = 0.02
_PART_FOR_HANDOVER = 2 / 3
"""Of a node's time to stop. The rest is for closing its logs."""


class Stopped(NamedTuple):
    """A node that was running and was stopped; `killed` where it did not stop in time."""

    node_id: int
    killed: bool


def stop(
    layout: ClusterLayout, places: Sequence[NodePlace], timeout_s: float, on_stopped: Callable[[Stopped], object]
) -> list[Stopped]:
    """Stop the nodes that are running, each within `timeout_s`."""
    running = [place for place in places if process_of(layout, place).pid() is not None]
    stopped: list[Stopped] = []
    for group in in_groups(layout, running):
        ended = _stop_together(layout, {place.node_id: process_of(layout, place) for place in group}, timeout_s)
        for done in ended:
            stopped.append(done)
            on_stopped(done)
    for place in places:
        process_of(layout, place).forget()
    return stopped


def in_groups(layout: ClusterLayout, running: Sequence[NodePlace]) -> list[list[NodePlace]]:
    """The nodes in the order of stopping; those of one group are stopped together."""
    brokers = [place for place in running if place.controller_port is None]
    voters = [place for place in running if place.controller_port is not None]
    if layout.joined:
        return [[place] for place in running]  # the quorum is on other hosts, and keeps running
    leader = _active_controller(layout) if len(voters) > 1 else None
    voters.sort(key=lambda place: place.node_id == leader)
    spare = _spare_voters(layout)
    if spare < 0:
        return [[*brokers, *voters]]  # without a majority, no controlled shutdown is possible
    groups = [[place] for place in (*brokers, *voters[:spare])]
    last = voters[spare:]
    return [*groups, last] if last else groups


def _spare_voters(layout: ClusterLayout) -> int:
    """How many voters can be stopped while a majority remains; below zero where there is no majority now."""
    voters = [place for place in layout.nodes if place.controller_port is not None]
    alive = sum(process_of(layout, place).pid() is not None for place in voters)
    return alive - (len(voters) // 2 + 1)


def _stop_together(layout: ClusterLayout, processes: dict[int, NodeProcess], timeout_s: float) -> list[Stopped]:
    began = time.monotonic()
    deadline = began + timeout_s
    for process in processes.values():
        process.send(signal.SIGTERM)
    late, is_hurried = list(processes.values()), False
    while late and time.monotonic() < deadline:
        is_late = time.monotonic() >= began + timeout_s * _PART_FOR_HANDOVER
        if not is_hurried and (is_late or (not layout.joined and _spare_voters(layout) < 0)):
            is_hurried = True
            for process in late:
                process.send(signal.SIGTERM)
        late = wait_until_ended(late, _POLL_S)
    for process in late:
        process.send(signal.SIGKILL)
    wait_until_ended(late, _KILL_S)
    return [Stopped(node_id, process in late) for node_id, process in processes.items()]


def _active_controller(layout: ClusterLayout) -> int | None:
    """The active controller's node id; None where no node answers within `_TIMEOUT_MS`."""
    from kalda.cli.common.command_admin import CommandAdmin

    try:
        with CommandAdmin(layout.local_servers, timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS) as admin:
            return admin.describe_quorum().leader_id
    except ApiError:
        return None
