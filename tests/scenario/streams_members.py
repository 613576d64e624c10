"""Members of streams groups (KIP-1071) that speak to a coordinator in virtual time."""

from __future__ import annotations

from typing import Any

from groups_world import Answer, Context, World

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.coordinator.groups.streams.protocol import StreamsAnswer
from kalda.protocol.codec import encode
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestEndpoint,
    StreamsGroupHeartbeatRequestKeyValue,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatRequestTaskOffset,
    StreamsGroupHeartbeatRequestTopicInfo,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    StreamsGroupStatus,
)

TaskNames = set[str]


def topology(
    *sources: str, epoch: int = 0, changelogs: tuple[str, ...] = (), repartitions: tuple[str, ...] = ()
) -> StreamsGroupHeartbeatRequestTopology:
    """Subtopology "0" that reads `sources`, with changelogs; for `repartitions` it writes to them, and "1" reads."""

    def infos(names: tuple[str, ...]) -> list[StreamsGroupHeartbeatRequestTopicInfo]:
        return [StreamsGroupHeartbeatRequestTopicInfo(name=name) for name in names]

    first = StreamsGroupHeartbeatRequestSubtopology(
        subtopology_id="0",
        source_topics=list(sources),
        state_changelog_topics=infos(changelogs),
        repartition_sink_topics=list(repartitions),
    )
    second = StreamsGroupHeartbeatRequestSubtopology(subtopology_id="1", repartition_source_topics=infos(repartitions))
    subtopologies = [first, second] if repartitions else [first]
    return StreamsGroupHeartbeatRequestTopology(epoch=epoch, subtopologies=subtopologies)


class StreamsMember:
    """A thread of an application: it runs what it was assigned, and gives back at once what it is told to."""

    def __init__(
        self,
        world: World,
        member_id: str,
        *,
        process: str | None = None,
        reads: StreamsGroupHeartbeatRequestTopology | None = None,
        group: str = "app",
        instance: str | None = None,
        endpoint: tuple[str, int] | None = None,
        tags: dict[str, str] | None = None,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.process = process or f"process of {member_id}"
        self.reads = topology("orders") if reads is None else reads
        self.group = group
        self.instance = instance
        self.endpoint = endpoint
        self.tags = tags
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.epoch = 0
        self.endpoint_epoch = 0
        self.active: TaskNames = set()
        self.standby: TaskNames = set()
        self.warmup: TaskNames = set()
        self.endpoints: dict[str, list[str]] = {}
        self.missing: dict[str, int] = {}
        """Partitions of internal topics that the last answer found missing."""
        self.error = "NONE"
        self.message: str | None = None
        self.response: Any = None

    def send(self, version: int = 1, **fields: Any) -> Answer:
        """A heartbeat with these fields; the member does not look at the answer."""
        request = StreamsGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, **fields)
        encode(request, version)
        coordinator = self.world.coordinator
        context: Any = Context(version)
        try:
            prepared = run_to_end(coordinator.prepare_streams_heartbeat(request))
        except ApiError as error:
            refusal = StreamsGroupHeartbeatResponse(error_code=int(error.code), error_message=error.message or None)
            return StreamsReply(StreamsAnswer(refusal), version)
        return StreamsReply(coordinator.streams_group_heartbeat(context, request, prepared, self.world.now), version)

    def beat(self, **changed: Any) -> str:
        """A heartbeat as a client sends it, and what it makes of the answer; the name of the error."""
        fields: dict[str, Any] = {
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "endpoint_information_epoch": self.endpoint_epoch,
        }
        if self.epoch == 0:
            self.active, self.standby, self.warmup = set(), set(), set()
            host = self.endpoint
            fields |= {
                "topology": self.reads,
                "rebalance_timeout_ms": self.rebalance_timeout_ms,
                "process_id": self.process,
                "user_endpoint": host and StreamsGroupHeartbeatRequestEndpoint(host=host[0], port=host[1]),
                "client_tags": [
                    StreamsGroupHeartbeatRequestKeyValue(key=key, value=value)
                    for key, value in (self.tags or {}).items()
                ],
            }
        fields["active_tasks"], fields["standby_tasks"], fields["warmup_tasks"] = self.owned()
        return self.take(self.send(**(fields | changed)))

    def take(self, answer: Answer) -> str:
        """What a client makes of an answer."""
        self.response = response = answer.value
        self.error, self.message = ErrorCode(response.error_code).name, response.error_message
        if self.error == "NONE":
            self.epoch = response.member_epoch
            self.endpoint_epoch = response.endpoint_information_epoch
            if response.active_tasks is not None:
                self.active, self.standby, self.warmup = (
                    named(listed) for listed in (response.active_tasks, response.standby_tasks, response.warmup_tasks)
                )
            if response.partitions_by_user_endpoint is not None:
                self.endpoints = {
                    f"{each.user_endpoint.host}:{each.user_endpoint.port}": [
                        f"{topic.topic}-{partition}"
                        for topic in each.active_partitions
                        for partition in topic.partitions
                    ]
                    for each in response.partitions_by_user_endpoint
                }
        elif self.error in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"):
            self.epoch = 0
            self.active, self.standby, self.warmup = set(), set(), set()
        if isinstance(answer, StreamsReply):
            self.missing = {name: each.partitions for name, each in answer.missing_topics.items()}
        return self.error

    def owned(self) -> tuple[list[Any], list[Any], list[Any]]:
        """What the member has, as it says so in a heartbeat."""
        return task_lists(self.active), task_lists(self.standby), task_lists(self.warmup)

    @property
    def statuses(self) -> dict[str, str]:
        """Of the last answer, by name."""
        listed = self.response.status or ()
        return {StreamsGroupStatus(each.status_code).name: each.status_detail for each in listed}

    def leave(self, epoch: int = -1, **fields: Any) -> str:
        """Leave for good, or with -2 for a while."""
        answer = self.send(member_epoch=epoch, instance_id=self.instance, **fields)
        self.active, self.standby, self.warmup = set(), set(), set()
        return ErrorCode(answer.value.error_code).name


class StreamsReply(Answer):
    """The answer of a heartbeat; its value is the response."""

    @property
    def value(self) -> Any:
        outcome = self._outcome
        if isinstance(outcome, StreamsAnswer):
            encode(outcome.response, self._version)
            return outcome.response
        assert not self.waits, "no answer yet"
        assert outcome.error is None, outcome.error
        return outcome.value.response

    @property
    def missing_topics(self) -> Any:
        outcome = self._outcome
        return (outcome if isinstance(outcome, StreamsAnswer) else outcome.value).missing_topics


def task_lists(names: TaskNames) -> list[StreamsGroupHeartbeatRequestTaskIds]:
    tasks: dict[str, list[int]] = {}
    for name in sorted(names):
        subtopology, _, partition = name.rpartition("_")
        tasks.setdefault(subtopology, []).append(int(partition))
    return [
        StreamsGroupHeartbeatRequestTaskIds(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in tasks.items()
    ]


def named(listed: Any) -> TaskNames:
    return {f"{each.subtopology_id}_{partition}" for each in listed for partition in each.partitions}


def offsets(**by_task: int) -> list[StreamsGroupHeartbeatRequestTaskOffset]:
    """`t0_1=5`: of task 0_1."""
    found = []
    for name, offset in by_task.items():
        subtopology, _, partition = name.removeprefix("t").partition("_")
        found.append(
            StreamsGroupHeartbeatRequestTaskOffset(subtopology_id=subtopology, partition=int(partition), offset=offset)
        )
    return found


def settle(world: World, *members: StreamsMember, rounds: int = 8) -> None:
    """Heartbeats of all members, a second apart, until the group is stable."""
    for _ in range(rounds):
        for member in members:
            member.beat()
        world.pass_time(1_000)
        found = world.shard("app").streams.groups.get("app")
        if found is not None and found.state().value == "Stable":
            for member in members:
                member.beat()
            return


def described(world: World, group: str = "app", **fields: Any) -> Any:
    request = StreamsGroupDescribeRequest(group_ids=[group], **fields)
    (found,) = world.coordinator.describe_streams_groups(request, world.now)
    return found
