"""Code that the benchmarks of whole nodes share.

- `systems`: Kalda and Apache Kafka: how a node of each is formatted and run
- `nodes`: one node, started and stopped
- `clusters`: three nodes, started, killed, paused and restarted
- `metadata_log`: a metadata log of a million records, or a snapshot of it, written without any node
- `client`: one client process: librdkafka's throughput, raw requests, round trips; prints its figures as JSON
- `transacting`: its workloads of transactions
- `steady`: one client process that writes without a pause, and reports the longest times without an acknowledgement
- `worst_requests`: what a client can send that makes a node work longest, for each API
- `heavy_state`: state by the ten thousand, and the requests that list, alter or end it
- `sparks`: a Spark session, and a topic for it to read
- `blocking`: requests over a blocking socket, also such as no client sends; tests use it too
- `watching`: what others notice meanwhile: the longest wait of another client, the peak of a process's memory
- `ceiling`: a data source for Spark without a broker
- `pages`: memory that the host of a virtual machine has provided already
- `figures`: alternating rounds, medians, ratios of medians, the table
"""
