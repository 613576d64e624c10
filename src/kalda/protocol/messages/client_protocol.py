"""Messages inside opaque bytes fields: consumer subscriptions and assignments, a forwarded principal."""

from __future__ import annotations

from kalda.protocol.notation import Bool, Bytes, Int32, Message, String, Struct, field


class ConsumerProtocolAssignmentTopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class ConsumerProtocolAssignment(Message, versions="0-3"):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = []
    user_data: Bytes | None = None


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = []


class ConsumerProtocolSubscription(Message, versions="0-3"):
    topics: list[String] = []
    user_data: Bytes | None = None
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = field("1+", default=[], ignorable=True)
    generation_id: Int32 = field("2+", default=-1, ignorable=True)
    rack_id: String | None = field("3+", default=None, ignorable=True)


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: String = ""
    name: String = ""
    token_authenticated: Bool = False
