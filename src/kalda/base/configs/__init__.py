"""Kafka's config keys as data: names, types, defaults, valid values, and how effective values are computed.

Pure functions of texts and mappings: no file is read, and the state of the cluster is an argument.

- `definition`: types, validators, a table of keys, text to value and back
- `broker`: the table of broker and controller keys, by area, and those that Kafka does not have
- `topic`, `group`, `client_metrics`: the tables of the other resources, and checks across several keys
- `client`: the keys that all clients have, how their configurations are gathered, and what to give for the keys of
  other clients
- `oauthbearer`: those of OAUTHBEARER, of nodes as well
- `consumer`, `share_consumer`, `admin`: the tables of consumers, share consumers and admin clients
- `producer`: the keys of producers, and what must hold between them
- `addresses`: addresses inside values: of listeners, of the controller quorum
- `server`: a node's configuration: its values, and what must hold between them
- `dynamic`: layers of dynamic configs, checks of their alterations, effective values with their source and synonyms
- `resources`: kinds of resources with configs, sources of values, operations of alterations
- `documentation`: a line on each key
- `without_effect`: keys that are accepted but have no effect, and the reasons
"""
