"""The simulated world: whole clusters and their clients in one thread, in virtual time, out of one seed.

The world has a network, disks and clocks that fail on a seed's command; in it live the real nodes, and workloads that
write down what they were promised. Checkers hold the end against the promises. A seed that breaks one breaks it again.

- `process`: a process' life, and what belongs to it
- `loop`: asyncio in virtual time
- `network`: connections that are delayed, stalled, cut and reset
- `disk`: files in memory that lose, tear or corrupt what was not synced
- `machine`: disk, clock, threads and power of one host
- `world`: all of it, with the trace and the log
- `cluster`: whole nodes
- `client`: requests to a cluster through all that befalls it
- `history`: what clients attempted, were promised and have seen
- `workload`: producers and administrators
- `readers`: consumers, of leaders and of followers
- `groups`: members of consumer groups, and what groups are promised
- `admin`: operators of topics, replicas and the quorum
- `dirs`: several log directories a node, and replicas that are moved between them
- `deletions`: an operator who deletes records
- `phoenix`: a topic that is deleted and made again under its name
- `faults`: what befalls a cluster, and when
- `bugs`: exceptions in the active controller
- `losses`: faults that take data from one replica, and what may be demanded then
- `checks`: what must hold, meanwhile and in the end
- `scenario`: one seed from its first step to its verdict
- `ablations`: safeguards switched off one by one, each of which some seed must miss
- `quorum`: the quorum's machines alone, without bytes
- `quorum_storm`: seeds of those
- `controllers`: controllers alone, around one log
- `controller_storm`: seeds of those
"""
