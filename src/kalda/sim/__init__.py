"""The simulator: whole clusters and their clients in one thread, in virtual time, as a function of one seed.

It has a network, disks and clocks with faults that follow from the seed. The nodes are the real ones. Workloads record
what was acknowledged to them and what they have read; checkers compare this with the final logs. A seed that violates
an invariant violates it in each run.

The world:

- `world`: one simulated world; bugs of controllers, brought about
- `loop`: an asyncio loop in virtual time
- `machine`: disk, clock, threads and power of one host
- `disk`: files in memory that lose, tear or corrupt what was not synced
- `network`: connections that are delayed, stalled, cut and reset

Nodes, clients and what they record:

- `cluster`: whole nodes
- `client`: a client of the simulated cluster; Kalda's own asyncio clients on a simulated machine
- `history`: what clients attempted, what was acknowledged, what they read
- `workload`: producers, administrators, and consumers from leaders and followers
- `group_loops`: consume-transform-produce by members of a group
- `groups`: members of consumer groups and of streams groups, and who owns what
- `large_group`: one consumer group of thousands of members that send heartbeats only
- `share_members`: members of share groups, and what these promise
- `recreated`: topics that are deleted and created again below Kalda's own producers, consumers and share consumers
- `admin`: operators of topics, records, replicas, their log directories, and the quorum

Faults, checks, verdicts:

- `faults`: the faults of a run, those included in which a replica loses data
- `checks`: the invariants, checked during a run and at its end
- `scenario`: one seed from its start to its verdict

Transactions:

- `transaction_clients`: producers and clients of transactions, and the history of what they saw
- `transaction_storm`: seeds of those, judged by `kalda.verify`

Parts of a node alone:

- `quorum`: the quorum's machines alone, without bytes, and seeds of those
- `controllers`: controllers alone, around one log, and seeds of those
- `process`: simulated processes, and the callbacks that they schedule
"""
