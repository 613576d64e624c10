"""Decisions of clients, without sockets, clocks or threads. `now_ms` and randomness are arguments.

Of all clients:

- `cluster_values`: brokers, topics and partitions as values, and bootstrap addresses
- `errors`: the message of a failure, with advice
- `backoff`: the pause before the next attempt
- `metadata`: brokers, topics and leaders, and when they have to be fetched again
- `controllers`: the same of a client of controllers
- `connections`: connections to nodes, requests in flight, API versions, as actions for a shell
- `requests`: metadata kept up to date, coordinators found, requests sent
- `client_metrics`: what a client measures of its connections and its I/O
- `own_metrics`: when a client pushes its own metrics
- `pushing`: which of them, and how (KIP-714)

Of the producer, from `send` to the acknowledgement:

- `outgoing`: interceptors, serializers, the partition and the size of a record
- `interceptors`: those of producers and consumers, from their configuration to their end
- `serdes`: the types of Kafka's own serializers and deserializers
- `row_batches`: rows of Arrow tables as batches
- `sticky_partitioner`: the partition of records without a key
- `accumulator`: batches that wait to be sent, in queues
- `buffer_pool`: their memory
- `producer_batch`: one batch: its records, its header, what becomes of it
- `idempotence`: sequence numbers, and their repair
- `transactions`: sequence numbers under the epochs of transactions, and the requests of those
- `sender`: requests to leaders, and the outcome of each batch
- `producer_metrics`: a producer's metrics, by Kafka's names
- `producer_errors`: errors that no broker has sent
- `producing`: a whole producer, put together
- `partitioner`: the partition of a key
- `transaction_manager`: a producer's transactions: its state, and its requests to coordinators
- `transaction_errors`: failures of transactions by what the application has to do

Of the consumer, and of members of groups:

- `assignors`: which member of a group gets which partitions
- `sticky`: the sticky assignors
- `consumer`: a whole consumer, without its sockets, threads and clock
- `subscription`: what a consumer reads, and where it is in each partition
- `fetching`: records fetched ahead, and handed out in order
- `fetch_sessions`: incremental fetch sessions
- `positions`: committed offsets, resets, validation by leader epoch, offsets by time
- `committing`: the order and the repetition of commits
- `commits`: the requests that commit and read offsets
- `membership`: what both group protocols have in common
- `classic_membership`: a member of a classic group
- `consumer_membership`: a member of a KIP-848 group
- `deserializers`: bytes to keys and values
- `consumer_errors`: what a consumer raises, and operations that take several steps
- `consumer_metrics`: a consumer's metrics, by Kafka's names
- `consumer_protocol`: the subscriptions and assignments that members of a classic group exchange

Of the admin client:

- `administration`: administrative calls as plans, and how they are run
"""
