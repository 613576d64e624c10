"""Kalda: Apache Kafka rebuilt in Python.

    from kalda import Producer, Consumer, Admin     # blocking clients, for Kalda and for Apache Kafka
    from kalda.aio import Producer, Consumer, Admin     # the same for asyncio
    from kalda.registry import Registry     # serializers of a schema registry
    from kalda.testing import Cluster     # real nodes in this process, for tests
    from kalda.spark import session     # topics in Spark

Nodes and tools are run by the command `kalda`. Everything else is internal: its packages, the floors, are listed from
the ground up in ARCHITECTURE.md; imports go down only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalda.base.configs.resources import ConfigOperation as ConfigOperation
    from kalda.base.configs.resources import ConfigResourceType as ConfigResourceType
    from kalda.base.errors import ApiError as ApiError
    from kalda.base.ids import TopicPartition as TopicPartition
    from kalda.client.admin.access import ScramCredential as ScramCredential
    from kalda.client.admin.access import ScramUpsertion as ScramUpsertion
    from kalda.client.admin.access import Token as Token
    from kalda.client.admin.acls import Acl as Acl
    from kalda.client.admin.acls import AclFilter as AclFilter
    from kalda.client.admin.admin_client import Admin as Admin
    from kalda.client.admin.configs import Alteration as Alteration
    from kalda.client.admin.configs import ConfigEntry as ConfigEntry
    from kalda.client.admin.configs import Resource as Resource
    from kalda.client.admin.groups import Group as Group
    from kalda.client.admin.groups import ListedGroup as ListedGroup
    from kalda.client.admin.nodes import ClusterDescription as ClusterDescription
    from kalda.client.admin.nodes import LogDir as LogDir
    from kalda.client.admin.reassignments import Reassignment as Reassignment
    from kalda.client.admin.topics import CreatedTopic as CreatedTopic
    from kalda.client.admin.topics import NewTopic as NewTopic
    from kalda.client.admin.transactions import ActiveProducer as ActiveProducer
    from kalda.client.admin.transactions import FencedProducer as FencedProducer
    from kalda.client.admin.transactions import ListedTransaction as ListedTransaction
    from kalda.client.admin.transactions import Transaction as Transaction
    from kalda.client.consumer.consumer import Consumer as Consumer
    from kalda.client.consumer.consumer_calls import ConsumerClosed as ConsumerClosed
    from kalda.client.consumer.consumer_calls import ConsumerInterceptor as ConsumerInterceptor
    from kalda.client.producer.delivery import DeliveryFuture as DeliveryFuture
    from kalda.client.producer.delivery import TableFuture as TableFuture
    from kalda.client.producer.producer import Producer as Producer
    from kalda.clientcore.administration import Outcomes as Outcomes
    from kalda.clientcore.connections.cluster_values import Broker as Broker
    from kalda.clientcore.connections.cluster_values import Partition as Partition
    from kalda.clientcore.connections.cluster_values import Topic as Topic
    from kalda.clientcore.consuming.commits import GroupMetadata as GroupMetadata
    from kalda.clientcore.consuming.consumer_errors import CommitFailed as CommitFailed
    from kalda.clientcore.consuming.consumer_errors import LogTruncated as LogTruncated
    from kalda.clientcore.consuming.consumer_errors import NoOffset as NoOffset
    from kalda.clientcore.consuming.consumer_errors import OffsetOutOfRange as OffsetOutOfRange
    from kalda.clientcore.consuming.consumer_errors import UndecodableRecord as UndecodableRecord
    from kalda.clientcore.consuming.consumer_errors import Wakeup as Wakeup
    from kalda.clientcore.consuming.subscription import OffsetAndEpoch as OffsetAndEpoch
    from kalda.clientcore.producing.producer_batch import RecordMetadata as RecordMetadata
    from kalda.clientcore.producing.producer_batch import WrittenBatch as WrittenBatch
    from kalda.clientcore.producing.producer_errors import BufferExhausted as BufferExhausted
    from kalda.clientcore.producing.producer_errors import DeliveryAborted as DeliveryAborted
    from kalda.clientcore.producing.producer_errors import DeliveryTimeout as DeliveryTimeout
    from kalda.clientcore.producing.producer_errors import MetadataTimeout as MetadataTimeout
    from kalda.clientcore.producing.producer_errors import ProducerClosed as ProducerClosed
    from kalda.clientcore.producing.producer_errors import RecordTooLarge as RecordTooLarge
    from kalda.clientcore.producing.producer_errors import SerializationError as SerializationError
    from kalda.clientcore.producing.transaction_errors import AbortableTransactionError as AbortableTransactionError
    from kalda.clientcore.producing.transaction_errors import FatalTransactionError as FatalTransactionError
    from kalda.clientcore.producing.transaction_errors import ProducerFencedError as ProducerFencedError
    from kalda.clientcore.producing.transaction_errors import (
        TransactionMisconfiguredError as TransactionMisconfiguredError,
    )
    from kalda.protocol.kinds import ElectionType as ElectionType
    from kalda.protocol.kinds import UpgradeType as UpgradeType
    from kalda.protocol.messages.fetch import OffsetSpec as OffsetSpec
    from kalda.records.consuming import Record as Record

__version__ = "0.1.0"

_PUBLIC = {
    "AbortableTransactionError": "kalda.clientcore.producing.transaction_errors",
    "Acl": "kalda.client.admin.acls",
    "AclFilter": "kalda.client.admin.acls",
    "ActiveProducer": "kalda.client.admin.transactions",
    "Admin": "kalda.client.admin.admin_client",
    "Alteration": "kalda.client.admin.configs",
    "ApiError": "kalda.base.errors",
    "Broker": "kalda.clientcore.connections.cluster_values",
    "BufferExhausted": "kalda.clientcore.producing.producer_errors",
    "ClusterDescription": "kalda.client.admin.nodes",
    "CommitFailed": "kalda.clientcore.consuming.consumer_errors",
    "ConfigEntry": "kalda.client.admin.configs",
    "ConfigOperation": "kalda.base.configs.resources",
    "ConfigResourceType": "kalda.base.configs.resources",
    "Consumer": "kalda.client.consumer.consumer",
    "ConsumerClosed": "kalda.client.consumer.consumer_calls",
    "ConsumerInterceptor": "kalda.client.consumer.consumer_calls",
    "CreatedTopic": "kalda.client.admin.topics",
    "DeliveryAborted": "kalda.clientcore.producing.producer_errors",
    "DeliveryFuture": "kalda.client.producer.delivery",
    "DeliveryTimeout": "kalda.clientcore.producing.producer_errors",
    "ElectionType": "kalda.protocol.kinds",
    "FatalTransactionError": "kalda.clientcore.producing.transaction_errors",
    "FencedProducer": "kalda.client.admin.transactions",
    "Group": "kalda.client.admin.groups",
    "GroupMetadata": "kalda.clientcore.consuming.commits",
    "ListedGroup": "kalda.client.admin.groups",
    "ListedTransaction": "kalda.client.admin.transactions",
    "LogDir": "kalda.client.admin.nodes",
    "LogTruncated": "kalda.clientcore.consuming.consumer_errors",
    "MetadataTimeout": "kalda.clientcore.producing.producer_errors",
    "NewTopic": "kalda.client.admin.topics",
    "NoOffset": "kalda.clientcore.consuming.consumer_errors",
    "OffsetAndEpoch": "kalda.clientcore.consuming.subscription",
    "OffsetOutOfRange": "kalda.clientcore.consuming.consumer_errors",
    "OffsetSpec": "kalda.protocol.messages.fetch",
    "Outcomes": "kalda.clientcore.administration",
    "Partition": "kalda.clientcore.connections.cluster_values",
    "Producer": "kalda.client.producer.producer",
    "ProducerClosed": "kalda.clientcore.producing.producer_errors",
    "ProducerFencedError": "kalda.clientcore.producing.transaction_errors",
    "Reassignment": "kalda.client.admin.reassignments",
    "Record": "kalda.records.consuming",
    "RecordMetadata": "kalda.clientcore.producing.producer_batch",
    "RecordTooLarge": "kalda.clientcore.producing.producer_errors",
    "Resource": "kalda.client.admin.configs",
    "ScramCredential": "kalda.client.admin.access",
    "ScramUpsertion": "kalda.client.admin.access",
    "SerializationError": "kalda.clientcore.producing.producer_errors",
    "TableFuture": "kalda.client.producer.delivery",
    "Token": "kalda.client.admin.access",
    "Topic": "kalda.clientcore.connections.cluster_values",
    "TopicPartition": "kalda.base.ids",
    "Transaction": "kalda.client.admin.transactions",
    "TransactionMisconfiguredError": "kalda.clientcore.producing.transaction_errors",
    "UndecodableRecord": "kalda.clientcore.consuming.consumer_errors",
    "UpgradeType": "kalda.protocol.kinds",
    "Wakeup": "kalda.clientcore.consuming.consumer_errors",
    "WrittenBatch": "kalda.clientcore.producing.producer_batch",
}
"""The clients, and the values and errors that they take, return and raise."""


def __getattr__(name: str) -> object:
    """A public name, imported at their first use: `import kalda` itself costs nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """With the names that are not imported yet, for completion and for tools that write the reference."""
    return sorted({*globals(), *_PUBLIC})
