"""Ground floor: words that every other floor speaks.

It knows no socket, file, clock or random source; it only names their interfaces.

- `errors`: Kafka's error codes and the exceptions that carry them
- `ids`: UUIDs in Kafka's text form, topic partitions
- `topic_names`: what a topic may be called; internal topics
- `pending`: an answer that comes later, without asyncio
- `turn`: a body of work that never runs inside itself
- `sensors`: counters, gauges and rates under Kafka's metric names
- `clock`: the clock's interface
- `scheduling`: the interfaces of timers and of jobs that may block
- `disk`: the disk's interface
- `file_slice`: a part of a file that is read as it is sent
- `properties`: the text format of properties files
- `configs`: Kafka's config keys, types, defaults and synonyms
"""
