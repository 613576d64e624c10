"""Clients of a cluster, as thin shells over sockets and a clock.

Decisions are those of the machines in `core`. A blocking client runs them on a thread of its own, an asyncio client on
its loop. The command line, the embedded cluster and Spark use these clients too.

- `consumer`, `aio_consumer`: the blocking consumer and the asyncio one
- `consumer_calls`: what both can do without waiting
- `consumer_io`: the blocking consumer's I/O, in the caller's thread or in the background
- `admin_client`, `aio_admin`: the blocking admin client and the asyncio one
- `admin_driven`: what both run on their I/O
- `driven`: what the I/O of every client runs: its core, with what the shell adds
- `columns`: fetched batches as Arrow columns, those of Spark's Kafka source
- `producer`, `aio_producer`: the producer, blocking and for asyncio, over `core/producing`
- `producer_calls`: what both have in common: metrics, and why a record cannot be sent
- `delivery`: futures of records, and the calls when batches are done
- `producer_io`: the blocking producer's I/O, on its own thread or on one that waits for a record
- `io_thread`, `io_loop`: run a core on a thread of its own, or on an asyncio loop
- `held_signals`: handlers of signals wait while the main thread changes the state of a client
- `channels`, `channel`, `tls_channel`, `sasl_channel`: the sockets of a core's connections; one socket; one with TLS;
  one that logs in
- `instance_ids`: the id under which a client pushes metrics, awaited
- `client_host`: clocks, random numbers and connections of an asyncio client's machine
- `one_node`: a connection to one certain node, driven by the calling thread
- `config_files`: a client's configuration from a properties file
- `admin`: administration of a cluster, one file a subject
- `core`: decisions without I/O
"""
