"""Decisions of clients, without sockets, clocks or threads. `now_ms` and randomness are arguments.

A core is what a shell of `client` drives: it is called with responses and with the time, and gives actions for sockets.

- `producer`: a whole producer, put together from `producing`
- `consumer`: a whole consumer, put together from `consuming` and `groups`
- `share_consumer`: a whole share consumer, put together from `sharing` and `groups`
- `subscribed_core`: what both have in common; `client_core`: what the cores of all clients have
- `administration`: administrative calls as plans, and how they are run
- `serdes`: the types of Kafka's own serializers and deserializers
- `connections`: the cluster as a client sees it, and requests to it; below all others
- `producing`, `consuming`: records on their way to a leader, and from it
- `sharing`: records of share groups, and their acknowledgements; above `consuming`
- `groups`: members of groups and their committed offsets; above `consuming` and `sharing`
"""
