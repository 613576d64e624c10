"""Avro by a schema registry."""

import os

from kalda import Consumer, Producer
from kalda.registry import Registry

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "total", "type": "int"}]}'

registry = Registry(os.environ.get("REGISTRY_URL", "http://localhost:8081"))
with Producer(bootstrap_servers=SERVERS, value_serializer=registry.avro(SCHEMA)) as producer:
    producer.send("avro-orders", {"total": 42}).result(timeout=30)

with Consumer(
    bootstrap_servers=SERVERS, value_deserializer=registry.read_avro(), auto_offset_reset="earliest"
) as consumer:
    consumer.assign([("avro-orders", 0)])
    for record in consumer.poll(timeout=10):
        if record.value is not None:  # None is a tombstone
            print(record.value["total"])
