"""A cluster of processes on this host: what `kalda cluster up`, `status`, `logs` and `down` are made of.

It knows one directory, in which everything about these nodes is: who they are, their properties, data, logs and pids.
The directory alone says which cluster it is, so the same commands find it again after a crash or a reboot. It knows no
command line, and no more of other hosts than the controllers that were named to it.

- `layout`: which nodes there are, with which roles, ports and properties; remembered in `cluster.json`
- `joining`: what the controllers of a cluster that runs elsewhere tell to those who want to join
- `process`: one node's process: start it, recognize it, signal it, what it uses
- `starting`: format and start what does not run, wait until all serve
- `stopping`: one node after the other, and the last ones of a quorum together
- `overview`: what each node is doing
- `log_lines`: the nodes' log files, merged and followed
"""
