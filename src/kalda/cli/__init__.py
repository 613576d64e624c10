"""`kalda` on the command line: one file a noun.

It knows how to ask and how to show; what is asked is the business of the client, what is run of the broker.

- `main.py`: the entry; `server` goes its own way, without a command-line library
- `commands.py`: the group of all nouns, each loaded when it is used
- `server.py`: run a node
- `storage.py`: format log directories, and look at them
- `topics.py`, `configs.py`, `groups.py`: what clients see, and its settings
- `cluster.py`, `features.py`, `quorum.py`: the nodes and what they have agreed on
- `elect.py`, and `reassign.py` over `reassignment`: who leads partitions, and who has them
- `cluster_up.py` and `cluster_local.py` over `local`: a cluster of processes on this host
- `produce.py`, `consume.py`: lines to records, and records to lines
- `dump_log.py`: files of a log directory, without a node
- `sim.py` over `workers.py`: seeds of the simulator, in several processes
- `completion.py`: the shells' completion
- `session.py`: the options that say which cluster, and how long to try
- `failures.py`: one line on stderr and an exit code
- `output.py`, `formats.py`, `times.py`: tables, JSON and progress; records; times and durations
"""
