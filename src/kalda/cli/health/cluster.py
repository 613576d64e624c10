"""A cluster as its own answers show it: brokers, partitions, quorum, versions, log directories, clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.failures import Failure
from kalda.cli.common.metrics_pages import addresses, clock_of
from kalda.cli.common.output import counted
from kalda.cli.health.findings import Finding, Severity, error, examine, is_loopback, ok, warning

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.quorum import Quorum

_SHOWN = 5
_FAR_S = 1.0
_TOO_FAR_S = 30.0
_SILENT_MS = 10_000
_GIB = 1 << 30
_NO_RIGHT = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def examine_cluster(admin: CommandAdmin, bootstrap: list[tuple[str, int]]) -> Iterator[Finding]:
    """All checks of a cluster. The later ones need a login, which the first request makes."""
    protocol = str(admin.config.get("security.protocol") or "PLAINTEXT").upper()
    failed = False
    for host, port in bootstrap:
        for found in examine("bootstrap", host, port, protocol):
            failed = failed or bool(found.mend)
            yield found
    try:
        described = admin.describe_cluster(fenced=True)
    except ApiError as failure:
        if not failed or len(bootstrap) > 1:
            yield error("login", f"the cluster does not serve this client: {failure.message}", _login_mend(failure))
        return
    yield ok("login", f"cluster {described.cluster_id} answers, with security.protocol={protocol}")
    fenced = [node.node_id for node in described.nodes if node.is_fenced]
    if fenced:
        yield error(
            "brokers",
            f"{counted(len(fenced), 'broker')} of {len(described.nodes)} out of service: {_some(fenced)}",
            "start them, or remove one that will not return: kalda cluster unregister --id ID",
        )
    else:
        yield ok("brokers", f"{counted(len(described.nodes), 'broker')} in service")
    known = set(bootstrap)
    far = any(not is_loopback(host) for host, _ in bootstrap)
    unreached = []
    """Brokers at whose own addresses nothing answers: what only they can say would be waited for."""
    for node in described.nodes:
        if node.is_fenced or (node.host, node.port) in known:
            continue
        check = f"broker {node.node_id}"
        if far and is_loopback(node.host):
            yield error(
                check,
                f"broker {node.node_id} advertises {node.host}:{node.port}, which is here another machine than there",
                "set its advertised.listeners to a name that clients resolve to its host",
            )
            unreached.append(node.node_id)
            continue
        for found in examine(check, node.host, node.port, protocol):
            if found.severity is Severity.ERROR and node.node_id not in unreached:
                unreached.append(node.node_id)
            yield found
    live = [node.node_id for node in described.nodes if not node.is_fenced]
    checks: tuple[Callable[[CommandAdmin], Iterator[Finding]], ...] = (
        lambda one: _partitions(one, len(live)), _quorum, lambda one: _clocks(one, unreached), _versions,
        lambda one: _log_dirs(one, [node_id for node_id in live if node_id not in unreached]),
    )  # fmt: skip
    for check_of in checks:
        try:
            yield from check_of(admin)
        except ApiError as failure:
            yield _not_made(failure)
    if unreached:
        yield warning(
            "brokers",
            f"clocks and disks were not examined of {counted(len(unreached), 'broker')} that this host does not reach:"
            f" {_some(unreached)}",
            "mend what is said of them above, and run kalda doctor again",
        )


def _not_made(failure: ApiError) -> Finding:
    """A check that the cluster did not answer."""
    if failure.code in _NO_RIGHT:
        return warning("rights", f"a check could not be made: {failure.message}", "run it as a user with DESCRIBE")
    mend = "mend what is said above, and run kalda doctor again; --request-timeout-ms says how long it waits"
    return warning("answers", f"a check could not be made: {failure.message}", mend)


def _login_mend(failure: ApiError) -> str:
    if failure.code in (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
        return "check sasl.mechanism and sasl.jaas.config; `kalda users list` shows who has which credentials"
    return "check security.protocol and its keys in --command-config, and the address"


def _some(values: list[object] | list[int] | list[str]) -> str:
    more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return ", ".join(map(str, values[:_SHOWN])) + more


def _partitions(admin: CommandAdmin, brokers: int) -> Iterator[Finding]:
    topics = admin.list_topics(internal=True).values()
    offline = [f"{t.name}-{p.partition}" for t in topics for p in t.partitions if p.leader < 0]
    under = [
        f"{t.name}-{p.partition}"
        for t in topics
        for p in t.partitions
        if p.leader >= 0 and len(p.isr) < len(p.replicas)
    ]
    single = [t.name for t in topics if t.is_internal and all(len(p.replicas) == 1 for p in t.partitions)]
    if offline:
        yield error(
            "partitions",
            f"{counted(len(offline), 'partition')} without a leader: {_some(offline)}",
            "start the brokers that have their replicas: kalda topics describe --unavailable-partitions",
        )
    if under:
        yield error(
            "partitions",
            f"{counted(len(under), 'partition')} with replicas out of sync: {_some(under)}",
            "look for a broker that is down, slow or full: kalda topics describe --under-replicated-partitions",
        )
    if not offline and not under:
        count = sum(len(topic.partitions) for topic in topics)
        yield ok("partitions", f"all replicas of {counted(count, 'partition')} are in sync")
    if single and brokers > 1:
        yield warning(
            "replication",
            f"{_some(single)}: one replica, so all groups or transactions stop with one broker",
            "add replicas: kalda reassign plan --topics NAME --replication-factor 3, and set "
            "offsets.topic.replication.factor",
        )


def _quorum(admin: CommandAdmin) -> Iterator[Finding]:
    began_ms = time.time_ns() // 1_000_000
    quorum = admin.describe_quorum()
    ended_ms = time.time_ns() // 1_000_000
    leader = next((voter for voter in quorum.voters if voter.node_id == quorum.leader_id), None)
    if leader is None:
        yield error("quorum", "the metadata quorum has no leader", "start controllers until a majority of them runs")
        return
    now_ms = max(voter.last_fetch_timestamp for voter in quorum.voters)
    silent = _silent(quorum, now_ms)
    if silent:
        yield error(
            "quorum",
            f"{counted(len(silent), 'voter')} of {len(quorum.voters)} behind the leader or silent: {_some(silent)}",
            "start these controllers, or look at their logs: kalda quorum describe --replication",
        )
    else:
        yield ok(
            "quorum", f"node {quorum.leader_id} leads {counted(len(quorum.voters), 'voter')}, all of them caught up"
        )
    if len(quorum.voters) == 2:
        yield warning(
            "quorum", "two voters: metadata stops when either of them does", "have three: kalda quorum add-controller"
        )
    yield from _clock(leader.last_caught_up_timestamp, began_ms, ended_ms)


def _silent(quorum: Quorum, now_ms: int) -> list[int]:
    """The voters that have not fetched for long. A leader's own timestamps are its present time."""
    return [
        voter.node_id
        for voter in quorum.voters
        if voter.node_id != quorum.leader_id and now_ms - voter.last_caught_up_timestamp > _SILENT_MS
    ]


def _clock(leader_ms: int, began_ms: int, ended_ms: int) -> Iterator[Finding]:
    """The leader's clock, which it reports for itself, against this host's, when the answer was made."""
    if leader_ms >= 0:
        yield _apart("the active controller", max(began_ms - leader_ms, leader_ms - ended_ms, 0) / 1000)


def _apart(whose: str, seconds: float) -> Finding:
    if seconds < _FAR_S:
        return ok("clock", f"the clocks of {whose} and of this host differ by less than {_FAR_S:g} s")
    text = f"the clocks of {whose} and of this host differ by {seconds:.1f} s"
    mend = "synchronize both by NTP: retention, timestamps and the lifetimes of tokens and certificates follow them"
    return (error if seconds >= _TOO_FAR_S else warning)("clock", text, mend)


def _clocks(admin: CommandAdmin, unreached: list[int]) -> Iterator[Finding]:
    """Each broker's clock, by the date of its metrics listener: the protocol shows the active controller's alone."""
    try:
        found = addresses(admin, unreached=unreached)
    except Failure:  # no broker serves metrics
        return
    for address in found:
        began_s = time.time()
        try:
            date_s = clock_of(address)
        except OSError as failure:
            yield warning(
                f"broker {address.node_id}",
                f"its metrics at {address.host}:{address.port} cannot be reached from here: "
                f"{failure.strerror or failure}",
                "open the port to the hosts of Prometheus and of operators, or correct kalda.metrics.listener",
            )
            continue
        if date_s is not None:
            apart_s = max(began_s - (date_s + 1), date_s - time.time(), 0)  # the date is in whole seconds
            yield _apart(f"broker {address.node_id}", apart_s)


def _versions(admin: CommandAdmin) -> Iterator[Finding]:
    old = [
        f"{each.name} {each.finalized} of {each.supported_max}"
        for each in admin.describe_features().features
        if 0 < each.finalized < each.supported_max
    ]
    if old:
        yield warning(
            "versions",
            f"feature levels below what the broker supports: {_some(old)}",
            "when all nodes run the new release: kalda features upgrade --release-version RELEASE",
        )
    else:
        yield ok("versions", "the finalized feature levels are those of the brokers' release")


def _log_dirs(admin: CommandAdmin, brokers: list[int]) -> Iterator[Finding]:
    outcomes = admin.describe_log_dirs(brokers)
    found = [log_dir for log_dirs in outcomes.succeeded.values() for log_dir in log_dirs]
    bad = False
    for log_dir in found:
        where = f"broker {log_dir.broker_id}: {log_dir.path}"
        if log_dir.error_code:
            bad = True
            yield error("disk", f"{where} has failed", "mend or replace the disk, and restart the broker")
            continue
        finding = space("disk", where, log_dir.usable_bytes, log_dir.total_bytes)
        if finding is not None:
            bad = True
            yield finding
    if found and not bad:
        yield ok("disk", f"{counted(len(found), 'log directory', 'log directories')} with room")


def space(check: str, where: str, usable_bytes: int, total_bytes: int) -> Finding | None:
    """A finding where a disk is nearly full; None where it has room, or its size is not known."""
    if total_bytes <= 0 or usable_bytes < 0:
        return None
    share = usable_bytes / total_bytes
    if share >= 0.15:
        return None
    text = f"{where}: {usable_bytes / _GIB:.1f} GiB are free, {share:.0%} of the disk"
    mend = "lower retention.ms or retention.bytes of large topics (kalda cluster log-dirs shows them), or add a disk"
    return error(check, text, mend) if share < 0.05 else warning(check, text, mend)
