"""Pipelines between topics and tables, on Spark's own machinery: `kalda pipeline load | derive | snapshot | replay |
status`.

A pipeline is a Structured Streaming query, or a batch query, that reads the formats `kalda` and writes Spark's own file
sink, Delta, Iceberg or topics. What was read and what was written are committed by Spark's checkpoint and the sink.
There is no engine here, only what people otherwise write around such queries: options, places, progress, results.

- `session`: the Spark session of a command, and which jars a format needs
- `background`: processes that get what others leave of the CPU and the disk
- `topics`: partitions and ends of topics, from a cluster
- `values`: values of records as columns, and what is wrong with those that cannot be
- `registry`: Avro schemas of a topic's values, from a schema registry
- `files`: files beside a pipeline: bounded reads, states, locks
- `lake`: a directory that `load` fills: its layout, its files, one load at a time
- `load`: topics into a lake
- `running`: one query from its start to its end, with progress
- `project`: a project file: topics, tables, derived topics and tables
- `derive`: runs a project file
- `snapshot`: the latest value of each key of a topic as a table
- `replay`: a table or files into a topic, in order
- `checkpoints`: what the checkpoint of a query says
- `status`: pipelines with their lag and last batches
- `chart`: a picture of rates and lags, as PNG or as one HTML file
"""
