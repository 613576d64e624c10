"""What users of other clients type by habit, and Kalda's way: read only where a name is not there.

`CLASSES` are classes of confluent-kafka, kafka-python and aiokafka, `METHODS` methods of their clients.
"""

from __future__ import annotations

from typing import Final

_PRODUCER: Final = "`from kalda import Producer`"
_CONSUMER: Final = "`from kalda import Consumer`"
_ADMIN: Final = "`from kalda import Admin`"
CLASSES: Final = {
    "KafkaProducer": _PRODUCER,
    "KafkaConsumer": _CONSUMER,
    "KafkaAdminClient": _ADMIN,
    "AdminClient": _ADMIN,
    "SerializingProducer": f"{_PRODUCER}, which takes key_serializer= and value_serializer=",
    "DeserializingConsumer": f"{_CONSUMER}, which takes key_deserializer= and value_deserializer=",
    "AIOKafkaProducer": "`from kalda.aio import Producer`",
    "AIOKafkaConsumer": "`from kalda.aio import Consumer`",
    "AIOKafkaAdminClient": "`from kalda.aio import Admin`",
    "KafkaException": "`from kalda import KafkaError`, the base of all errors",
    "ConsumerRecord": "`from kalda import Record`",
    "SchemaRegistryClient": "`from kalda.registry import Registry`",
    "Cluster": "`from kalda.testing import Cluster`",
}
"""By name, what is imported instead."""

METHODS: Final = {
    "Producer": {
        "produce": "send(topic, value, key=key): it returns a future, which has the record's offset",
        "poll": "nothing: records are sent, and callbacks called, without it",
        "send_and_wait": "send(topic, value).result(), or in asyncio `await (await producer.send(topic, value))`",
        "list_topics": "Admin.list_topics()",
        "start": "nothing: it is ready when it is made, or by `async with`",
        "stop": "close()",
        "bootstrap_connected": "partitions_for(topic), which raises where no node is reached",
    },
    "Consumer": {
        "consume": "poll(timeout, max_records=N), which returns a list",
        "getone": "`async for record in consumer`, or poll(max_records=1)",
        "getmany": "poll(timeout), which returns one list",
        "get_watermark_offsets": "beginning_offsets(partition) and end_offsets(partition)",
        "partitions_for_topic": "partitions_for(topic)",
        "topics": "list_topics()",
        "highwater": "end_offsets(partition)",
        "start": "nothing: it is ready when it is made, or by `async with`",
        "stop": "close()",
    },
    "Admin": {
        "list_consumer_groups": "list_groups()",
        "describe_consumer_groups": "describe_groups([group])",
        "delete_consumer_groups": "delete_groups([group])",
        "list_consumer_group_offsets": "list_group_offsets(group)",
        "incremental_alter_configs": "alter_configs({resource: [Alteration(...)]})",
        "start": "nothing: it is ready when it is made, or by `async with`",
    },
}
"""By the class, and the method's name, what is called instead."""
