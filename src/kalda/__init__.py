"""Kalda: Apache Kafka rebuilt in Python.

    from kalda import Producer, Consumer, ShareConsumer, Admin     # blocking clients, for Kalda and for Apache Kafka
    from kalda.aio import Producer, Consumer, ShareConsumer, Admin     # the same for asyncio
    from kalda.registry import Registry     # serializers of a schema registry
    from kalda.testing import Cluster     # real nodes in this process, for tests
    from kalda.spark import session     # topics in Spark

Nodes and tools are run by the command `kalda`. Everything else is internal: its packages, the floors, are listed from
the ground up in ARCHITECTURE.md; imports go down only.
"""

TYPE_CHECKING = False
"""As that of `typing`, which takes longer to import than all of this."""

if TYPE_CHECKING:
    from kalda.base.configs.definition import InvalidConfig
    from kalda.base.configs.resources import ConfigOperation, ConfigResourceType, ConfigSource
    from kalda.base.errors import ApiError, CallTimeout, CorruptRecord, ErrorCode, KafkaError, WrongState
    from kalda.base.ids import TopicPartition, Uuid
    from kalda.base.share_states import AcknowledgeType
    from kalda.client.admin.access import ScramCredential, ScramUpsertion, Token
    from kalda.client.admin.acls import Acl, AclFilter
    from kalda.client.admin.admin_client import Admin
    from kalda.client.admin.configs import Alteration, ConfigEntry, ConfigResource, Synonym
    from kalda.client.admin.features import Feature, Features
    from kalda.client.admin.group_values import Group, ListedGroup, Member
    from kalda.client.admin.groups import ShareGroupOffset
    from kalda.client.admin.nodes import ClusterDescription, LogDir, Node
    from kalda.client.admin.quorum import Quorum, QuorumReplica, VoterListener
    from kalda.client.admin.reassignments import Reassignment
    from kalda.client.admin.topics import CreatedTopic, NewTopic
    from kalda.client.admin.transactions import ActiveProducer, FencedProducer, ListedTransaction, Transaction
    from kalda.client.consumer.common_calls import ConsumerClosed
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.consumer.consumer_calls import ConsumerInterceptor, RebalanceListener
    from kalda.client.consumer.share_calls import AcknowledgementCommitCallback
    from kalda.client.consumer.share_consumer import ShareConsumer
    from kalda.client.keywords import AdminKeywords, ConsumerKeywords, ProducerKeywords, ShareConsumerKeywords
    from kalda.client.producer.delivery import DeliveryFuture, TableFuture
    from kalda.client.producer.producer import Producer
    from kalda.clientcore.administration import Outcomes
    from kalda.clientcore.connections.errors import UnknownTopic, Unreachable, UnresolvedBootstrap
    from kalda.clientcore.connections.metadata import Address, Broker, FoundOffset, Partition, Topic
    from kalda.clientcore.consumer import SubscriptionPattern
    from kalda.clientcore.consuming.consumer_errors import (
        CommitFailed,
        LogTruncated,
        NoOffset,
        OffsetOutOfRange,
        UndecodableRecord,
        Wakeup,
    )
    from kalda.clientcore.consuming.positions import GroupMetadata
    from kalda.clientcore.consuming.subscription import OffsetAndEpoch
    from kalda.clientcore.producing.producer_batch import RecordMetadata, WrittenBatch
    from kalda.clientcore.producing.producer_errors import (
        AbortableTransactionError,
        BufferExhausted,
        DeliveryAborted,
        DeliveryTimeout,
        FatalTransactionError,
        MetadataTimeout,
        ProducerClosed,
        ProducerFencedError,
        RecordTooLarge,
        SerializationError,
        TransactionMisconfiguredError,
    )
    from kalda.clientcore.producing.transaction_manager import PreparedTxnState
    from kalda.protocol.kinds import ElectionType, UpgradeType
    from kalda.protocol.messages.partitions import OffsetSpec
    from kalda.records.consuming import Record

__version__ = "0.1.0"

__all__ = [
    "AbortableTransactionError",
    "AcknowledgeType",
    "AcknowledgementCommitCallback",
    "Acl",
    "AclFilter",
    "ActiveProducer",
    "Address",
    "Admin",
    "AdminKeywords",
    "Alteration",
    "ApiError",
    "Broker",
    "BufferExhausted",
    "CallTimeout",
    "ClusterDescription",
    "CommitFailed",
    "ConfigEntry",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "ConfigSource",
    "Consumer",
    "ConsumerClosed",
    "ConsumerInterceptor",
    "ConsumerKeywords",
    "CorruptRecord",
    "CreatedTopic",
    "DeliveryAborted",
    "DeliveryFuture",
    "DeliveryTimeout",
    "ElectionType",
    "ErrorCode",
    "FatalTransactionError",
    "Feature",
    "Features",
    "FencedProducer",
    "FoundOffset",
    "Group",
    "GroupMetadata",
    "InvalidConfig",
    "KafkaError",
    "ListedGroup",
    "ListedTransaction",
    "LogDir",
    "LogTruncated",
    "Member",
    "MetadataTimeout",
    "NewTopic",
    "NoOffset",
    "Node",
    "OffsetAndEpoch",
    "OffsetOutOfRange",
    "OffsetSpec",
    "Outcomes",
    "Partition",
    "PreparedTxnState",
    "Producer",
    "ProducerClosed",
    "ProducerFencedError",
    "ProducerKeywords",
    "Quorum",
    "QuorumReplica",
    "Reassignment",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RecordTooLarge",
    "ScramCredential",
    "ScramUpsertion",
    "SerializationError",
    "ShareConsumer",
    "ShareConsumerKeywords",
    "ShareGroupOffset",
    "SubscriptionPattern",
    "Synonym",
    "TableFuture",
    "Token",
    "Topic",
    "TopicPartition",
    "Transaction",
    "TransactionMisconfiguredError",
    "UndecodableRecord",
    "UnknownTopic",
    "Unreachable",
    "UnresolvedBootstrap",
    "UpgradeType",
    "Uuid",
    "VoterListener",
    "Wakeup",
    "WrittenBatch",
    "WrongState",
]

_NAMES = {
    "kalda.base.configs.definition": ("InvalidConfig",),
    "kalda.base.configs.resources": (
        "ConfigOperation",
        "ConfigResourceType",
        "ConfigSource",
    ),
    "kalda.base.errors": (
        "ApiError",
        "CallTimeout",
        "CorruptRecord",
        "ErrorCode",
        "KafkaError",
        "WrongState",
    ),
    "kalda.base.ids": (
        "TopicPartition",
        "Uuid",
    ),
    "kalda.base.share_states": ("AcknowledgeType",),
    "kalda.client.admin.access": (
        "ScramCredential",
        "ScramUpsertion",
        "Token",
    ),
    "kalda.client.admin.acls": (
        "Acl",
        "AclFilter",
    ),
    "kalda.client.admin.admin_client": ("Admin",),
    "kalda.client.admin.configs": (
        "Alteration",
        "ConfigEntry",
        "ConfigResource",
        "Synonym",
    ),
    "kalda.client.admin.features": (
        "Feature",
        "Features",
    ),
    "kalda.client.admin.group_values": (
        "Group",
        "ListedGroup",
        "Member",
    ),
    "kalda.client.admin.nodes": (
        "ClusterDescription",
        "LogDir",
        "Node",
    ),
    "kalda.client.admin.quorum": (
        "Quorum",
        "QuorumReplica",
        "VoterListener",
    ),
    "kalda.client.admin.reassignments": ("Reassignment",),
    "kalda.client.admin.groups": ("ShareGroupOffset",),
    "kalda.client.admin.topics": (
        "CreatedTopic",
        "NewTopic",
    ),
    "kalda.client.admin.transactions": (
        "ActiveProducer",
        "FencedProducer",
        "ListedTransaction",
        "Transaction",
    ),
    "kalda.client.consumer.common_calls": ("ConsumerClosed",),
    "kalda.client.consumer.consumer": ("Consumer",),
    "kalda.client.consumer.consumer_calls": (
        "ConsumerInterceptor",
        "RebalanceListener",
    ),
    "kalda.client.consumer.share_calls": ("AcknowledgementCommitCallback",),
    "kalda.client.consumer.share_consumer": ("ShareConsumer",),
    "kalda.client.keywords": ("AdminKeywords", "ConsumerKeywords", "ProducerKeywords", "ShareConsumerKeywords"),
    "kalda.client.producer.delivery": (
        "DeliveryFuture",
        "TableFuture",
    ),
    "kalda.client.producer.producer": ("Producer",),
    "kalda.clientcore.administration": ("Outcomes",),
    "kalda.clientcore.connections.metadata": (
        "Address",
        "Broker",
        "FoundOffset",
        "Partition",
        "Topic",
    ),
    "kalda.clientcore.connections.errors": (
        "UnknownTopic",
        "Unreachable",
        "UnresolvedBootstrap",
    ),
    "kalda.clientcore.consumer": ("SubscriptionPattern",),
    "kalda.clientcore.consuming.positions": ("GroupMetadata",),
    "kalda.clientcore.consuming.consumer_errors": (
        "CommitFailed",
        "LogTruncated",
        "NoOffset",
        "OffsetOutOfRange",
        "UndecodableRecord",
        "Wakeup",
    ),
    "kalda.clientcore.consuming.subscription": ("OffsetAndEpoch",),
    "kalda.clientcore.producing.producer_batch": (
        "RecordMetadata",
        "WrittenBatch",
    ),
    "kalda.clientcore.producing.producer_errors": (
        "AbortableTransactionError",
        "BufferExhausted",
        "DeliveryAborted",
        "DeliveryTimeout",
        "FatalTransactionError",
        "MetadataTimeout",
        "ProducerClosed",
        "ProducerFencedError",
        "RecordTooLarge",
        "SerializationError",
        "TransactionMisconfiguredError",
    ),
    "kalda.clientcore.producing.transaction_manager": ("PreparedTxnState",),
    "kalda.protocol.kinds": (
        "ElectionType",
        "UpgradeType",
    ),
    "kalda.protocol.messages.partitions": ("OffsetSpec",),
    "kalda.records.consuming": ("Record",),
}
"""The clients, and the values and errors that they take, return and raise, by the modules that define them."""

_PUBLIC = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """A public name, imported at its first use: `import kalda` itself costs nothing."""
    if name not in _PUBLIC:
        if name[:1].isupper():
            from kalda.client.other_clients import CLASSES

            if name in CLASSES:  # `from kalda import` has a text of its own for an AttributeError
                raise ImportError(f"kalda has no {name}; here it is {CLASSES[name]}", name=__name__)
        raise AttributeError(f"module 'kalda' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """With the names that are not imported yet, for completion and for tools that write the reference."""
    return sorted({*globals(), *__all__})
