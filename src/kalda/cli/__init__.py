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
- `quotas.py`, `explain.py`, `metrics.py`: quotas, throttled clients, what brokers measure
- `acls.py`, `users.py`, `tokens.py`: access control entries, SCRAM credentials, delegation tokens
- `client_metrics.py`: what clients push of their own metrics
- `elect.py`, and `reassign.py` over `reassignment`: leaders and replicas of partitions
- `cluster.py` and `cluster_local.py` over `local`: a cluster of processes on this host
- `tls.py`: certificates for trying out TLS
- `dump_log.py`: the content of the files of a log directory
- `pipeline.py`: pipelines between topics and tables, on Spark
- `verify.py` over `verification`: transactions on a cluster, and the verdict over their history
- `sim.py`: seeds of the simulator, in several processes
"""
