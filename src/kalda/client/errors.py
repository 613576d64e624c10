"""What a failure is called: an `ApiError` whose message says what was wrong, with which value, and what to do.

Brokers answer with codes, and only some APIs have room for a message. `refused` joins what the caller asked for, what
the broker said, and advice for the codes that people meet.
"""

from __future__ import annotations

from kalda.base.errors import ApiError, ErrorCode

ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist, or may not be seen; check the name and the partition",
    ErrorCode.TOPIC_ALREADY_EXISTS: "it exists already; choose another name, or delete it first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has 1 to 249 of a-z A-Z 0-9 . _ - and is neither . nor ..",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are fewer brokers alive than replicas asked for; ask for fewer",
    ErrorCode.INVALID_PARTITIONS: "ask for 1 or more, and for more than there are when adding",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic allows; send smaller batches, or raise the topic's "
    "max.message.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas; bring brokers back",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the partition does not have this offset, or not any more",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; check the name",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read this topic; stop them first",
    ErrorCode.INVALID_GROUP_ID: "a group needs a name",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members, or has let this one go; stop them, or join again",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this needs a right on the cluster; ask for it, or use another user",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this needs a right on the topic; ask for it, or use another user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this needs a right on the group; ask for it, or use another user",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not have this, or not in a version that is known here",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the cluster does not take this codec; choose another",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates this group yet; try again in a moment",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader; bring one of its replicas back",
    ErrorCode.TOPIC_DELETION_DISABLED: "set delete.topic.enable on the brokers",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "no broker is registered with this id; check the id",
    ErrorCode.POLICY_VIOLATION: "the cluster's policy, or the topic's cleanup.policy, forbids it",
}


class Unreachable(ApiError):
    """No broker could be connected to."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


def refused(code: int, what: str, message: str | None = None) -> ApiError:
    """The failure of `what` ("topic logs", "partition logs-0") with the broker's code and message, if it gave one."""
    known = ErrorCode(code)
    if known != code:
        return ApiError(known, f"{what}: the broker answers with unknown error code {code}")
    advice = message or ADVICE.get(known) or known.name.lower().replace("_", " ")
    return ApiError(known, f"{what}: {advice}")
