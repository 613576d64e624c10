"""Start the nodes that are not running: free ports, formatted directories, processes, and waiting until they serve.

Nodes that are running are not touched. A node serves when its metadata has all nodes of this host unfenced: then a
topic can be created on all of them, and clients get all of them from each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kalda.base.errors import ApiError, Portable
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.local.layout import ClusterLayout, LayoutError, NodePlace, join_host_port
from kalda.cli.local.log_lines import tail
from kalda.cli.local.process import NodeProcess
from kalda.client.admin.nodes import describe_cluster
from kalda.network.free_ports import free_ports, is_free

_POLL_S = 0.03
_CALL_MS = 2_000
_LAST_LINES = 15
_SOON = dict.fromkeys(
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"), 30
)
"""How often a node that starts is asked again."""


class StartFailure(Portable, Exception):
    """A node did not start; `lines` are the last lines of its log."""

    def __init__(self, message: str, lines: list[str]) -> None:
        super().__init__(message)
        self.lines = lines


def process_of(layout: ClusterLayout, place: NodePlace) -> NodeProcess:
    return NodeProcess(layout.home(place))


def move_from_taken_ports(layout: ClusterLayout, report: Callable[[str], None]) -> ClusterLayout:
    """The layout with new client ports for nodes whose port another process has taken while they were down. The port
    of a controller cannot change, since the quorum's voters have it. Raises `LayoutError`."""
    for place in layout.nodes:
        if process_of(layout, place).pid() is not None:
            continue
        if place.controller_port is not None and not is_free(place.controller_port, layout.bind_host):
            raise LayoutError(
                f"port {place.controller_port} is taken by another process, but the quorum has it as the address of "
                f"node {place.node_id}'s controller; stop that process, and try again"
            )
        if not is_free(place.port, layout.bind_host):
            port = free_ports(1, layout.bind_host)[0]
            report(f"Port {place.port} of node {place.node_id} is taken by another process; the node now uses {port}.")
            layout = layout.with_place(replace(place, port=port))
    return layout


def start_missing(layout: ClusterLayout, started: list[NodePlace]) -> None:
    """Format and start the nodes that are not running; each is added to `started` when its process was started.
    Raises `FormatError`, `OSError`."""
    missing = [place for place in layout.nodes if process_of(layout, place).pid() is None]
    now_ms = time.time_ns() // 1_000_000
    for place in missing:
        layout.write_properties(place, now_ms)
        layout.format(place, now_ms)
    for place in missing:
        process_of(layout, place).start()
        started.append(place)


def wait_until_all_serve(layout: ClusterLayout, timeout_s: float, on_progress: Callable[[int], object]) -> None:
    """Wait until the metadata of every node has all nodes unfenced, in one round without a pause: a broker may be
    fenced again while others start. `on_progress` is called with the number of nodes for which this holds. Raises
    `StartFailure`."""
    deadline = time.monotonic() + timeout_s
    node_ids = {place.node_id for place in layout.nodes}
    serving = most = 0
    reason = "it does not answer"
    while serving < len(layout.nodes):
        _check_alive(layout)
        place = layout.nodes[serving]
        try:
            unfenced = _unfenced_brokers(layout, place)
            reason = f"its metadata has brokers {', '.join(map(str, sorted(node_ids - unfenced)))} not in service yet"
            if node_ids <= unfenced:
                serving += 1
                most = max(most, serving)
                on_progress(most)
                continue
        except ApiError as error:
            reason = error.message or error.code.name
        if time.monotonic() > deadline:
            raise StartFailure(
                f"node {place.node_id} does not serve after {timeout_s:.0f} s: {reason}; the nodes are still running, "
                f"see kalda cluster status",
                tail(process_of(layout, place).log, _LAST_LINES),
            )
        serving = 0
        on_progress(most)
        time.sleep(_POLL_S)


def _check_alive(layout: ClusterLayout) -> None:
    for place in layout.nodes:
        process = process_of(layout, place)
        if process.pid() is None:
            code = process.exit_code()
            ended = "has ended" if code is None else f"has ended with {code}"
            raise StartFailure(
                f"node {place.node_id} {ended}; these are the last lines of {process.log}",
                tail(process.log, _LAST_LINES),
            )


def _unfenced_brokers(layout: ClusterLayout, place: NodePlace) -> set[int]:
    """The unfenced brokers in this node's metadata. Raises `ApiError`, also where the node is not one of them."""
    server = join_host_port(layout.local_host, place.port)
    with CommandAdmin(server, config=_SOON, timeout_ms=_CALL_MS, connect_timeout_ms=_CALL_MS) as admin:
        found = admin.run("its metadata", describe_cluster(broker_id=place.node_id))
    return {node.node_id for node in found.nodes} if found.cluster_id == layout.cluster_id else set()
