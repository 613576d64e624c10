"""The `kalda` command: one file a noun.

These files read options and print results. `kalda.client` sends the requests, and `kalda.broker` runs nodes.

- `main.py`: the entry point; `server` runs without a command-line library
- `commands.py`: the group of all nouns; a noun's module is loaded when it is used
- `common/`: what the commands share: the cluster's address, output, failures, completion
- `server.py`: run a node
- `storage.py`: format log directories, and show what is in them
- `topics.py`, `configs.py`, `groups.py`: topics, configs, consumer groups
- `records/`: `produce`, `consume`, `perf`
- `transactions.py`: transactions, and the producers of partitions
- `cluster.py`, `features.py`, `quorum.py`: brokers and controllers, feature levels, the metadata quorum
- `quotas.py`, `metrics.py`: quotas, what brokers measure
- `explain.py`: why clients are throttled, may do something, rebalance, lag
- `acls.py`, `users.py`, `tokens.py`: access control entries, SCRAM credentials, delegation tokens
- `client_metrics.py`: what clients push of their own metrics
- `elect.py`, and `reassign.py` over `reassignment`: leaders and replicas of partitions
- `cluster.py` and `cluster_local.py` over `local`: a cluster of processes on this host
- `doctor.py` over `health`: what is wrong with a cluster or a host, and what mends it
- `tls.py`: certificates for trying out TLS
- `dump_log.py`: the content of the files of a log directory
- `pipeline.py`: pipelines between topics and tables, on Spark
- `verify.py` over `verification`: transactions on a cluster, and the verdict over their history
- `demo/`: `kalda demo`, a story of orders with a proof
- `sim.py`: seeds of the simulator, in several processes
"""
