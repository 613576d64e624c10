"""From whatever there is to a cluster that serves: ports that are free, formatted directories, processes, patience.

Whatever runs is left alone. A node serves when it knows that all nodes of this host are in service: then a topic can
be created on all of them, and a client sees all of them from each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kalda.base.errors import ApiError
from kalda.cli.local.layout import Layout, LayoutError, Place
from kalda.cli.local.log_lines import tail
from kalda.cli.local.process import NodeProcess
from kalda.network.blocking import BlockingConnection
from kalda.network.free_ports import free_ports, is_free
from kalda.protocol.messages.metadata import DescribeClusterRequest

_POLL_S = 0.03
_CALL_MS = 2_000
_LAST_LINES = 15


class StartFailure(Exception):
    """What went wrong, and the last lines of the node that it went wrong with."""

    def __init__(self, message: str, lines: list[str]) -> None:
        super().__init__(message)
        self.lines = lines


def process_of(layout: Layout, place: Place) -> NodeProcess:
    return NodeProcess(layout.home(place))


def move_from_taken_ports(layout: Layout, say: Callable[[str], None]) -> Layout:
    """The layout with other ports for clients where somebody has taken a node's while it was down. A controller stays
    where the quorum knows it. Raises `LayoutError`."""
    for place in layout.nodes:
        if process_of(layout, place).pid() is not None:
            continue
        if place.controller_port is not None and not is_free(place.controller_port, layout.bind_host):
            raise LayoutError(
                f"port {place.controller_port}, where node {place.node_id}'s controller is known to the quorum, is "
                f"taken by another process; stop that one, and try again"
            )
        if not is_free(place.port, layout.bind_host):
            port = free_ports(1, layout.bind_host)[0]
            say(f"Port {place.port} of node {place.node_id} is taken by another process: the node moves to {port}.")
            layout = layout.with_place(replace(place, port=port))
    return layout


def start_missing(layout: Layout, started: list[Place]) -> None:
    """Format and start what does not run; `started` has each as soon as its process is there. Raises `FormatError`,
    `OSError`."""
    missing = [place for place in layout.nodes if process_of(layout, place).pid() is None]
    now_ms = time.time_ns() // 1_000_000
    for place in missing:
        layout.write_properties(place, now_ms)
        layout.format(place, now_ms)
    for place in missing:
        process_of(layout, place).start()
        started.append(place)


def wait_until_all_serve(layout: Layout, timeout_s: float, on_progress: Callable[[int], object]) -> None:
    """Until every node knows of every other; `on_progress` is told of how many that is so. Raises `StartFailure`."""
    deadline = time.monotonic() + timeout_s
    wanted = {place.node_id for place in layout.nodes}
    waiting = list(layout.nodes)
    reason = "it does not answer"
    while waiting:
        _check_alive(layout)
        place = waiting[0]
        try:
            known = _known_to(layout, place)
            reason = f"it does not know of {', '.join(map(str, sorted(wanted - known)))} yet"
            if wanted <= known:
                on_progress(len(layout.nodes) - len(waiting) + 1)
                waiting.pop(0)
                continue
        except ApiError as error:
            reason = error.message or error.code.name
        if time.monotonic() > deadline:
            raise StartFailure(
                f"node {place.node_id} does not serve after {timeout_s:.0f} s: {reason}; the nodes go on, see kalda "
                f"cluster status",
                tail(process_of(layout, place).log, _LAST_LINES),
            )
        on_progress(len(layout.nodes) - len(waiting))
        time.sleep(_POLL_S)


def _check_alive(layout: Layout) -> None:
    for place in layout.nodes:
        process = process_of(layout, place)
        if process.pid() is None:
            code = process.exit_code()
            ended = "has ended" if code is None else f"has ended with {code}"
            raise StartFailure(
                f"node {place.node_id} {ended}; these are the last lines of {process.log}",
                tail(process.log, _LAST_LINES),
            )


def _known_to(layout: Layout, place: Place) -> set[int]:
    """The brokers in service, as this node knows it. Raises `ApiError`."""
    with BlockingConnection(
        layout.local_host, place.port, timeout_ms=_CALL_MS, connect_timeout_ms=_CALL_MS
    ) as connection:
        answer = connection.request(DescribeClusterRequest())
    if answer.cluster_id != layout.cluster_id:
        return set()
    return {broker.broker_id for broker in answer.brokers if not broker.is_fenced}
