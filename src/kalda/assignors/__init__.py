"""Which member of a group gets which partitions, by Kafka's rules; for clients and coordinators alike.

Pure functions of members, subscriptions and partition counts, and the bytes in which members exchange them. It does not
depend on who computes an assignment, nor on when.

- `stateless`: what an assignor is given and gives, and those without memory: range and round robin
- `sticky`: the sticky assignors
- `server_assignor`: what an assignor on the server is given and gives: of consumer groups (KIP-848), of streams groups
  (KIP-1071)
- `uniform_assignor`: Kafka's first; `server_assignors`: its second, `range`, and all that a coordinator has, by name
- `simple_assignor`: that of share groups (KIP-932)
- `sticky_task_assignor`: that of streams groups
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange
"""
