"""Values of records as columns, and what is wrong with those that cannot be.

- `frames`: the functions of definition files, `decoded` and `debezium`, with the columns that Debezium writes
- `values`: the formats, and the columns of each
- `json_values`, `faults`: JSON values as objects of a schema; why a value is bad, as a sentence
- `decoders`: what is decoded in Python, batch by batch
- `avro`, `protobuf`: schemas as columns, and one value
- `registry`: schemas of a topic's keys and values, from a schema registry
"""
