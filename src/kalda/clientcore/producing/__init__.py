"""A record of a producer, from `send` to the acknowledgement.

- `outbound_record`: interceptors, serializers, partitioners, the size of a record
- `row_batches`: rows of Arrow tables as batches
- `accumulator`: batches that wait to be sent, in queues, and when they are due
- `producer_batch`: one batch: its records, its header, what becomes of it
- `idempotence`: sequence numbers, and their repair
- `transactions`: sequence numbers under the epochs of transactions, and the requests of those
- `transaction_manager`: a producer's transactions: its state, and its requests to coordinators
- `sender`: requests to leaders, and the outcome of each batch: done, failed, split, sent again
- `producer_metrics`: a producer's metrics, by Kafka's names
- `producer_errors`: errors that no broker has sent; failures of transactions by what the application has to do
"""
