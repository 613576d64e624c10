"""The `kalda` command: one file a noun.

These files read options and print results. `kalda.client` sends the requests, and `kalda.broker` runs nodes.

- `main.py`: the entry point; `server` runs without a command-line library
- `commands.py`: the group of all nouns; a noun's module is loaded when it is used
- `server.py`: run a node; `single_node.py`: the one that `kalda server` makes without a file
- `storage.py`: format log directories, and show what is in them
- `topics.py`, `configs.py`, `groups.py`: topics, configs, consumer groups
- `transactions.py`: transactions, and the producers of partitions
- `cluster.py`, `features.py`, `quorum.py`: brokers and controllers, feature levels, the metadata quorum
- `quotas.py`, `explain.py`, `metrics.py` over `metrics_pages.py`: quotas, throttled clients, what brokers measure
- `acls.py`, `users.py`, `tokens.py`: access control entries, SCRAM credentials, delegation tokens
- `client_metrics.py`: what clients push of their own metrics
- `elect.py`, and `reassign.py` over `reassignment`: leaders and replicas of partitions
- `cluster_up.py` and `cluster_local.py` over `local`: a cluster of processes on this host
- `produce.py` over `record_input.py`: lines, JSON and files to records
- `consume.py` over `places.py`: records to lines, between two places of a log
- `perf.py`: rates and latencies, as Kafka's perf tools print them
- `tls.py`: certificates for trying out TLS
- `dump_log.py`: the content of the files of a log directory
- `pipeline.py`: pipelines between topics and tables, on Spark
- `verify.py` over `verification`: transactions on a cluster, and the verdict over their history
- `sim.py` over `workers.py`: seeds of the simulator, in several processes
- `completion.py`: completion in shells
- `session.py`, `profiles.py`: the options for the cluster's address, the clients' configuration and the timeout
- `command_admin.py`: the admin client that commands get, and what they ask of it beside the calls of `Admin`
- `failures.py`: one line on stderr and an exit code
- `output.py`, `formats.py`, `times.py`: tables, JSON and progress; records; times and durations
"""
