"""What the commands share: the cluster's address, output, failures.

- `session`, `profiles`: the options for the cluster's address, the clients' configuration and the timeout
- `command_admin`: the admin client that commands get, and what they ask of it beside the calls of `Admin`
- `failures`: one line on stderr and an exit code
- `os_errors`: what a file or a disk refuses, as a sentence
- `output`, `times`: tables, JSON and progress; times and durations
- `metrics_pages`: pages of metrics that nodes serve
- `completing`: what completes options, keys and names; the script for a shell
- `quiet_spark`: the stderr of Spark without its banner and the tracebacks of closed pipes
- `nouns`: the classes of all commands, and what users of other tools type
- `version`: `kalda version`
"""
