"""The simulator: whole clusters and their clients in one thread, in virtual time, as a function of one seed.

It has a network, disks and clocks with faults that follow from the seed. The nodes are the real ones. Workloads record
what was acknowledged to them and what they have read; checkers compare this with the final logs. A seed that violates
an invariant violates it in each run.

The world:

- `world`: a seed's loop, network and machines, with the trace and the log
- `loop`: asyncio in virtual time
- `process`: one start of a process, and the callbacks that belong to it
- `machine`: disk, clock, threads and power of one host
- `disk`: files in memory that lose, tear or corrupt what was not synced
- `network`: connections that are delayed, stalled, cut and reset

Nodes, clients and what they record:

- `cluster`: whole nodes
- `client`: a client process, and single requests of operators, with retries
- `client_io`: Kalda's own asyncio clients, over the simulated network
- `history`: what clients attempted, what was acknowledged, what they read
- `workload`: producers, administrators, and consumers from leaders and followers
- `group_loops`: consume-transform-produce by members of a group
- `groups`: members of consumer groups, and the guarantees of groups
- `large_group`: one consumer group of thousands of members that send heartbeats only
- `ownership`: who owns which partitions of a consumer group, or tasks of a streams group
- `share_members`: members of share groups, and what these promise
- `streams_members`: the same of streams groups
- `recreated`: topics that are deleted and created again below Kalda's own producers, consumers and share consumers
- `admin`: operators of topics, records, replicas, their log directories, and the quorum

Faults, checks, verdicts:

- `faults`: the faults of a run, and their ends
- `controller_faults`: exceptions in the active controller
- `losses`: faults in which one replica loses data, and what must hold then
- `checks`: the invariants, checked during a run and at its end
- `scenario`: one seed from its start to its verdict

Transactions:

- `transactions`: Kalda's producer of transactions, whose requests are lost and doubled
- `transaction_clients`: writers, consume-transform-produce loops, read_committed observers, with their history
- `transaction_storm`: seeds of those, judged by `kalda.verify`

Parts of a node alone:

- `quorum`: the quorum's machines alone, without bytes, and seeds of those
- `controllers`: controllers alone, around one log, and seeds of those
"""
