"""Stop nodes as an operator would: one after the other, so that each hands over what it leads to those that remain.

Leave to go is given by the active controller with a majority of the quorum. So brokers go first, then voters while
more than a majority of them runs, the active controller last; what remains then is told to stop together, for nobody
could give leave to the last. A node that is still there when its time is over is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kalda.base.errors import ApiError
from kalda.cli.local.layout import Layout, Place
from kalda.cli.local.process import NodeProcess, wait_until_ended
from kalda.cli.local.starting import process_of

_ASK_MS = 1_500
_KILL_S = 10.0


class Stopped(NamedTuple):
    """A node that ran and does not any more; `killed` where it had to be."""

    node_id: int
    killed: bool


def stop(
    layout: Layout, places: Sequence[Place], timeout_s: float, on_stopped: Callable[[Stopped], object]
) -> list[Stopped]:
    """Stop those of the nodes that run, each within `timeout_s`."""
    running = [place for place in places if process_of(layout, place).pid() is not None]
    stopped: list[Stopped] = []
    for group in in_groups(layout, running):
        for done in _stop_together({place.node_id: process_of(layout, place) for place in group}, timeout_s):
            stopped.append(done)
            on_stopped(done)
    for place in places:
        process_of(layout, place).forget()
    return stopped


def in_groups(layout: Layout, running: Sequence[Place]) -> list[list[Place]]:
    """Who stops after whom; those in one group stop together."""
    brokers = [place for place in running if place.controller_port is None]
    voters = [place for place in running if place.controller_port is not None]
    if layout.joined:
        return [[place] for place in running]  # the quorum is elsewhere, and remains
    leader = _active_controller(layout) if len(voters) > 1 else None
    voters.sort(key=lambda place: place.node_id == leader)
    in_all = sum(place.controller_port is not None for place in layout.nodes)
    alive = sum(
        place.controller_port is not None and process_of(layout, place).pid() is not None for place in layout.nodes
    )
    spare = max(0, alive - (in_all // 2 + 1))
    groups = [[place] for place in (*brokers, *voters[:spare])]
    last = voters[spare:]
    return [*groups, last] if last else groups


def _stop_together(processes: dict[int, NodeProcess], timeout_s: float) -> list[Stopped]:
    for process in processes.values():
        process.send(signal.SIGTERM)
    late = wait_until_ended(list(processes.values()), timeout_s)
    for process in late:
        process.send(signal.SIGKILL)
    wait_until_ended(late, _KILL_S)
    return [Stopped(node_id, process in late) for node_id, process in processes.items()]


def _active_controller(layout: Layout) -> int | None:
    """None where nobody says so soon."""
    from kalda.client.admin.quorum import describe_quorum
    from kalda.client.cluster import Cluster

    try:
        with Cluster(layout.local_servers, timeout_ms=_ASK_MS, connect_timeout_ms=_ASK_MS) as cluster:
            return describe_quorum(cluster).leader_id
    except ApiError:
        return None
