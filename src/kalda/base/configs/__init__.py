"""Kafka's config keys as data: names, types, defaults, what is valid, and how effective values come about.

Pure: texts and mappings in, values and errors out. It reads no file and knows no cluster.

- `definition`: types, validators, a table of keys, text to value and back
- `broker`: the table of broker and controller keys
- `broker_groups`, `broker_log`, `broker_node`, `broker_quorum`, `broker_replication`, `broker_security`,
  `broker_share`, `broker_tiering`, `broker_transactions`: its rows by area
- `broker_kalda`: rows that Kafka does not have
- `topic`, `group`, `client_metrics`: the tables of the other resources, and what is valid together
- `quorum_addresses`, `listeners`: addresses inside values
- `server_values`, `server_checks`, `server`: a node's configuration: its values, what must hold between them, both
- `dynamic`: layers of dynamic configs, what may be altered
- `resources`: what has configs, where values come from, how they are altered
- `describe`: effective values with their source and synonyms
- `documentation`: a line on each key
- `without_effect`: keys that are taken and not obeyed, and why
"""
