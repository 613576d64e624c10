"""Failures of requests: an `ApiError` whose message names the problem, the value and the remedy.

Brokers answer with error codes; only some APIs have a field for a message. `refused` makes the message from the
subject of the request, and the broker's message or, without one, advice for the error code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode

ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "it does not exist, or this user has no right to see it; check the name and "
    "the partition",
    ErrorCode.TOPIC_ALREADY_EXISTS: "it exists already; choose another name, or delete it first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has 1 to 249 of a-z A-Z 0-9 . _ - and is neither . nor ..",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are fewer live brokers than replicas requested; request fewer",
    ErrorCode.INVALID_PARTITIONS: "request at least 1 partition; an existing topic needs more than it has now",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic allows; send smaller batches, or raise the topic's "
    "max.message.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than min.insync.replicas; start the brokers that are "
    "down",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is outside the partition's log; choose one between its start and end",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group; check the name",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group read this topic; stop them first",
    ErrorCode.INVALID_GROUP_ID: "the group's name is empty or invalid; give another",
    ErrorCode.FENCED_INSTANCE_ID: "another member has the same group.instance.id, and has taken its place; give each "
    "its own",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has other members, or has removed this one; stop them, or join again",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user has no right to do this on the cluster; request it, or use "
    "another user",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "this user has no right to do this on the topic; request it, or use another "
    "user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "this user has no right to do this on the group; request it, or use another "
    "user",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support this API, or no version of it that this client "
    "supports; upgrade the older of the two",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "the broker does not accept this compression codec; choose another",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates this group yet; try again in a moment",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader; start a broker that has one of its replicas",
    ErrorCode.TOPIC_DELETION_DISABLED: "topics cannot be deleted; set delete.topic.enable=true on the brokers",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id, or it has expired; check the id",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user has no right to do this with the transactional id; "
    "request it, or use another user",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "no broker is registered with this id; check the id",
    ErrorCode.POLICY_VIOLATION: "the cluster's policy, or the topic's cleanup.policy, forbids it",
}


class Unreachable(ApiError):
    """No connection to any broker could be made."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class UnresolvedBootstrap(ApiError):
    """No host of `bootstrap.servers` had an address within `bootstrap.resolve.timeout.ms` (KIP-909). The client fails
    for good: close it, and make another one."""

    def __init__(self, timeout_ms: int, why: str) -> None:
        super().__init__(
            ErrorCode.NETWORK_EXCEPTION,
            f"no host of bootstrap.servers was resolved within bootstrap.resolve.timeout.ms={timeout_ms}: {why}. Check "
            "the names and the DNS, then make a new client",
        )


class UnknownTopic(ApiError):
    """The topic may be new, so that a broker does not have it yet, but the name may also be wrong: it is requested
    again for a moment only."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def refused(code: int, what: str, message: str | None = None) -> ApiError:
    """The failure of `what` ("topic logs", "partition logs-0"): `code` and `message` are the broker's."""
    known = ErrorCode(code)
    if known != code:
        return ApiError(known, f"{what}: the broker answered with the unknown error code {code}")
    advice = message or ADVICE.get(known) or known.name.lower().replace("_", " ")
    return ApiError(known, f"{what}: {advice}")


# Exponential backoff with jitter (KIP-580): the pause before attempt n+1 of something that has failed n times.

Random = Callable[[], float]
"""A number from 0 up to, but not including, 1."""
_JITTER = 0.2


class Backoff(NamedTuple):
    """`first_ms` doubles with each failure, up to 20 % of jitter is added or taken away, and no pause is longer than
    `longest_ms`. Where `first_ms` is not less than that, all pauses are `longest_ms`."""

    first_ms: int
    longest_ms: int
    random: Random

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures in a row; 0 after none."""
        if failures <= 0 or self.first_ms <= 0:
            return 0
        if self.first_ms >= self.longest_ms:
            return self.longest_ms
        plain_ms = min(self.longest_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return min(self.longest_ms, int(plain_ms * (1 + _JITTER * (2 * self.random() - 1))))
