"""The logs of a node in its log directories.

- `log_manager`: the logs of a node, from its start to its stop; which of their files stay open
- `log_dir`: one log directory with its marker and checkpoints
- `log_dirs`: the directories of a node: which are online, what takes one offline, where a new log goes
- `future_logs`: replicas on their way to another directory
- `maintenance`: what is due in the logs again and again
"""
