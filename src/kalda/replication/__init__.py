"""Replicas: the partitions that the metadata assigns to a broker.

A `Partition` is one replica's state over its log: leader or follower, in-sync set, high watermark. The floor answers
produce and fetch requests in terms of partitions and offsets, without socket, thread or clock: time comes as an
argument, waiting is a `Pending`, blocking work is handed to `Jobs`.

Most of it is drivers: synchronous objects with state of their own, which are given `Jobs`, `Timers` and `send`. Their
rule: whatever a driver calls (a callback, an append, a send, a `Pending` that it settles) may call it back before that
call returns; so it completes its own state first, or does its work in a `kalda.base.scheduling.Reentrancy`. Fetching
from a leader is a machine; followers, ISR, sessions and counters are stores.

- `partition`: one replica: leadership, append, read, high watermark
- `followers`: a leader's view of its followers, and the in-sync set
- `replica_fetcher`: a follower's fetching from one leader; which partition is fetched from which
- `share/`: share groups: share partitions, sessions, ShareFetch
- `waiters`: requests that wait for a partition to advance: the purgatory
- `fetch`: one fetch request: what is read for its session, until it is satisfied, and how that is answered
- `fetch_session`: incremental fetch sessions (KIP-227), and a follower's end of one
- `produce`: the produce path: append, wait for the in-sync replicas
- `verification`: transactions are verified with their coordinators before their first append
- `markers`: the markers that end transactions
- `counters`: counters of a broker's replicas
- `dir_moves`: replicas that move between log directories
- `replica_manager`: all replicas of a broker, as the metadata assigns them; which one a consumer should read from; the
  interface of their quotas
- `controller_requests`: what waits for the controller: one request at a time; ISR changes
- `gauges`: gauges of a broker's replicas, computed when they are read
"""
