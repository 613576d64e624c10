"""What the commands share: the cluster's address, output, failures.

- `session`, `profiles`: the options for the cluster's address, the clients' configuration and the timeout
- `command_admin`: the admin client that commands get, and what they ask of it beside the calls of `Admin`
- `failures`: one line on stderr and an exit code
- `output`, `times`: tables, JSON and progress; times and durations
- `metrics_pages`: pages of metrics that nodes serve
- `completion`: completion in shells
"""
