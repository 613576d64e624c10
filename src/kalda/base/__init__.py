"""Ground floor: error codes, ids, config keys and interfaces that every other floor imports.

It uses no socket, file, clock or random source. Of the disk, the clock and threads it has the interfaces only.

- `errors`: Kafka's error codes and the exceptions that carry them
- `ids`: UUIDs in Kafka's text form, topic partitions, names of topics
- `java_order`: the order and the hash codes of Java's hash tables, which Kafka's decisions depend on
- `patterns`: regular expressions of others, matched in linear time
- `background`: the work of an event loop that takes long, and how much of a turn it gets
- `sensors`: counters, gauges and rates under Kafka's metric names, and quantiles of durations
- `allocation`: buffers and tuples that are made at less than their usual cost
- `samples`: the sample of a window, and what of a quota is used without measuring a rate; compiled
- `stats`: sampled rates, averages, percentiles and token buckets by Kafka's rules, and their quotas
- `share_states`: share partitions, delivery states, and what is written of them
- `scheduling`: interfaces of clocks, timers and jobs; a result that is set later; a time that stalls do not count
- `disk`: the disk's interface, and parts of files that are sent unchanged
- `texts`: properties files, times that people write, text of others made safe to print
- `configs`: Kafka's config keys, types, defaults and synonyms
"""
