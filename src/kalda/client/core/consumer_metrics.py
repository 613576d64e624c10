"""A consumer's metrics, by Kafka's names: of the fetcher, of the group, of each assigned partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalda.client.core.consumer import ConsumerCore
    from kalda.client.core.membership import MembershipCounters


def consumer_metrics(core: ConsumerCore, now_ms: int) -> dict[str, float]:
    """Every metric's value; a partition's behind the partition's name."""
    fetcher, committing = core.fetcher, core.committing
    fetches = max(1, fetcher.fetches)
    found: dict[str, float] = {
        "bytes-consumed-total": fetcher.bytes_taken,
        "records-consumed-total": fetcher.records_taken,
        "fetch-total": fetcher.fetches,
        "fetch-size-avg": fetcher.bytes_fetched / fetches,
        "fetch-latency-avg": fetcher.fetch_latency_ms_sum / fetches,
        "fetch-latency-max": fetcher.fetch_latency_ms_max,
        "fetch-throttle-time-max": fetcher.last_throttle_ms,
        "records-per-request-avg": fetcher.records_taken / fetches,
        "assigned-partitions": len(core.subscription.partitions),
        "commit-total": committing.commits_total,
        "commit-latency-avg": committing.commit_latency_ms_sum / max(1, committing.commits_total),
        "commit-latency-max": committing.commit_latency_ms_max,
    }
    counters = core.membership_counters
    if counters is not None:
        found.update(_of_group(counters, now_ms))
    lags = []
    for partition, state in core.subscription.partitions.items():
        end = state.last_stable_offset if core.config.read_committed else state.high_watermark
        if end >= 0 and state.offset >= 0:
            lags.append(max(0, end - state.offset))
            found[f"{partition}.records-lag"] = lags[-1]
        if state.log_start_offset >= 0 and state.offset >= 0:
            found[f"{partition}.records-lead"] = max(0, state.offset - state.log_start_offset)
        found[f"{partition}.preferred-read-replica"] = state.replica
    found["records-lag-max"] = max(lags, default=float("nan"))
    return found


def _of_group(counters: MembershipCounters, now_ms: int) -> dict[str, float]:
    rebalances = counters.rebalances

    def seconds_ago(at_ms: int) -> float:
        return -1 if at_ms < 0 else (now_ms - at_ms) // 1000

    return {
        "join-total": counters.joins,
        "join-time-max": counters.join_latency_ms_max,
        "sync-total": counters.syncs,
        "heartbeat-total": counters.heartbeats,
        "last-heartbeat-seconds-ago": seconds_ago(counters.last_heartbeat_ms),
        "rebalance-total": rebalances,
        "failed-rebalance-total": counters.failed_rebalances,
        "rebalance-latency-avg": counters.rebalance_latency_ms_sum / rebalances if rebalances else float("nan"),
        "rebalance-latency-max": counters.rebalance_latency_ms_max,
        "rebalance-latency-total": counters.rebalance_latency_ms_sum,
        "last-rebalance-seconds-ago": seconds_ago(counters.last_rebalance_ms),
    }
