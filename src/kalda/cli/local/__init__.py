"""A cluster of processes on this host: the parts of `kalda cluster up`, `status`, `logs` and `down`.

One directory has everything about these nodes: `cluster.json`, and for each node its properties, data, log and pid. No
other state exists, so the same commands work after a crash or a reboot. Of other hosts, only the addresses of the
controllers that were named are used. These files do not depend on the command line.

- `layout`: the nodes, their roles, ports and properties; saved in `cluster.json`
- `process`: one node's process: start, recognize, signal, measure
- `nodes`: format and start the nodes that are not running, wait until all serve; stop one node after the other, and
  the last ones of a quorum together
- `single_node`: the node that `kalda server` makes without a file
- `ports`: a node moved to other ports, and which process has a port
- `log_lines`: the nodes' log files, merged and followed
"""
