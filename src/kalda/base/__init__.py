"""Ground floor: error codes, ids, config keys and interfaces that every other floor imports.

It uses no socket, file, clock or random source. Of the disk, the clock and threads it has the interfaces only.

- `errors`: Kafka's error codes and the exceptions that carry them
- `ids`: UUIDs in Kafka's text form, topic partitions
- `topic_names`: what a topic may be called; internal topics
- `memory`: buffers that are not filled with zeros before they are written
- `java_order`: the order and the hash codes of Java's hash tables, which Kafka's decisions depend on
- `patterns`: regular expressions of others, matched in linear time
- `printable`: text of others, safe for terminals and log lines
- `new_tuple`: makes a named tuple at half the cost
- `pending`: a result that is set later, without asyncio
- `background`: the work of an event loop that takes long, and how much of a turn it gets
- `reentrancy`: a body of work that never runs inside itself
- `sensors`: counters, gauges and rates under Kafka's metric names
- `durations`: quantiles of recent durations
- `samples`: the sample of a window, and what of a quota is used without measuring a rate; compiled
- `stats`: sampled rates, averages, percentiles and token buckets by Kafka's rules, and their quotas
- `loop_time`: the time by which a node measures its peers, which a stall of its loop does not count
- `share_states`: share partitions, delivery states, and what is written of them
- `scheduling`: the interfaces of the clock, of timers and of jobs that may block
- `disk`: the disk's interface
- `file_slice`: a part of a file that is read piece by piece while it is sent
- `properties`: the text format of properties files
- `moments`: times that people write
- `configs`: Kafka's config keys, types, defaults and synonyms
"""
