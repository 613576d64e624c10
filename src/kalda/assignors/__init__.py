"""Which member of a group gets which partitions, by Kafka's rules; for clients and coordinators alike.

Pure functions of members, subscriptions and partition counts, and the bytes in which members exchange them. It does not
depend on who computes an assignment, nor on when.

- `stateless`: what an assignor is given and gives, and those without memory: range and round robin
- `sticky`: the sticky assignors
- `server_assignor`: what an assignor of a consumer group (KIP-848) is given and gives
- `uniform_assignor`: Kafka's first; `server_assignors`: its second, `range`, and all that a coordinator has, by name
- `simple_assignor`: that of share groups (KIP-932)
- `task_assignor`: what an assignor of a streams group (KIP-1071) is given and gives; `sticky_task_assignor`: Kafka's
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange
"""
