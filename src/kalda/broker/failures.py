"""How each API says that the whole request failed.

Most responses have an error code on top. The others have one for each thing that was asked for, and every one of them
gets it, so that a client finds what it looks for. A few have both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError
from kalda.protocol.apis import ApiKey, response_class
from kalda.protocol.notation import FieldSpec, Request, Response
from kalda.protocol.schema import parse_versions


def failure_response(request: Request, version: int, error: ApiError) -> Response:
    """The response to `request` that tells of `error`."""
    response = response_class(request.API_KEY)()
    declared = type(response).declared
    spec = declared.get("error_code")
    if spec is not None and (not isinstance(spec, FieldSpec) or version in parse_versions(spec.versions)):
        response.error_code = error.code  # type: ignore[attr-defined]
        if "error_message" in declared:
            response.error_message = error.message or None  # type: ignore[attr-defined]
        if request.API_KEY not in _FAIL_TWICE and not (request.API_KEY == ApiKey.FETCH and version <= _LAST_BY_NAME):
            return response
    fill = _FILLERS.get(ApiKey(request.API_KEY))
    if fill is not None:
        fill(request, response, error)
    return response


def _by_topic_and_partition(
    module: str, topic_cls: str, partition_cls: str, topics: str, answers: str, partition: str, names: tuple[str, str]
) -> Callable[[Any, Any, ApiError], None]:
    """For responses with a list of topics that hold a list of partitions. `names` are the topic's name in the request
    and in the response; `partition` the request's list of partitions."""

    def fill(request: Any, response: Any, error: ApiError) -> None:
        from importlib import import_module

        messages = import_module(f"kalda.protocol.messages.{module}")
        for topic in getattr(request, topics) or ():
            answer = getattr(messages, topic_cls)()
            setattr(answer, names[1], getattr(topic, names[0]))
            if hasattr(topic, "topic_id") and hasattr(answer, "topic_id"):
                answer.topic_id = topic.topic_id
            for each in getattr(topic, partition):
                index = each if isinstance(each, int) else getattr(each, _index_name(each))
                result = getattr(messages, partition_cls)(error_code=error.code)
                setattr(result, _index_name(result), index)
                if "records" in type(result).declared:
                    result.records = b""
                for name in _OFFSETS:
                    if name in type(result).declared:
                        setattr(result, name, -1)
                _partitions_of(answer).append(result)
            getattr(response, answers).append(answer)

    return fill


_OFFSETS = ("base_offset", "high_watermark", "low_watermark")
"""Fields whose default is 0 and whose unknown is -1."""


def _index_name(struct: Any) -> str:
    for name in ("partition_index", "index", "partition"):
        if name in type(struct).declared:
            return name
    raise AssertionError(f"{type(struct).__name__} has no partition index")


def _partitions_of(answer: Any) -> list[Any]:
    for name in ("partitions", "partition_responses"):
        if name in type(answer).declared:
            partitions: list[Any] = getattr(answer, name)
            return partitions
    raise AssertionError(f"{type(answer).__name__} has no partitions")


def _metadata(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.metadata import MetadataResponseTopic

    for topic in request.topics or ():
        response.topics.append(
            MetadataResponseTopic(name=topic.name or "", topic_id=topic.topic_id, error_code=error.code)
        )


def _describe_topic_partitions(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.metadata import DescribeTopicPartitionsResponseTopic

    for topic in request.topics:
        response.topics.append(DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=error.code))


def _create_topics(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.topics import CreatableTopicResult

    for topic in request.topics:
        response.topics.append(
            CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message or None)
        )


def _delete_topics(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.topics import DeletableTopicResult

    for topic in request.topics:
        response.responses.append(DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=error.code))
    for name in request.topic_names:
        response.responses.append(DeletableTopicResult(name=name, error_code=error.code))


def _elect_leaders(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.topics import ElectLeadersResponsePartitionResult, ReplicaElectionResult

    for topic in request.topic_partitions or ():
        response.replica_election_results.append(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    ElectLeadersResponsePartitionResult(
                        partition_id=index, error_code=error.code, error_message=error.message or None
                    )
                    for index in topic.partitions
                ],
            )
        )


def _alter_partition_reassignments(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.topics import ReassignablePartitionResponse, ReassignableTopicResponse

    for topic in request.topics:
        response.responses.append(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index,
                        error_code=error.code,
                        error_message=error.message or None,
                    )
                    for each in topic.partitions
                ],
            )
        )


def _create_partitions(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.topics import CreatePartitionsTopicResult

    for topic in request.topics:
        response.results.append(
            CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message or None)
        )


def _configs(answer_cls: str) -> Callable[[Any, Any, ApiError], None]:
    def fill(request: Any, response: Any, error: ApiError) -> None:
        from kalda.protocol.messages import configs

        for resource in request.resources:
            response.responses.append(
                getattr(configs, answer_cls)(
                    error_code=error.code,
                    error_message=error.message or None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )

    return fill


def _client_quotas(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.admin import (
        AlterClientQuotasResponseEntityData,
        AlterClientQuotasResponseEntryData,
    )

    for entry in request.entries:
        response.entries.append(
            AlterClientQuotasResponseEntryData(
                error_code=error.code,
                error_message=error.message or None,
                entity=[
                    AlterClientQuotasResponseEntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                    for each in entry.entity
                ],
            )
        )


def _scram(request: Any, response: Any, error: ApiError) -> None:
    from kalda.protocol.messages.security import AlterUserScramCredentialsResult

    users = [*(each.name for each in request.deletions), *(each.name for each in request.upsertions)]
    for user in dict.fromkeys(users):
        response.results.append(
            AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message or None)
        )


_LAST_BY_NAME = 12
"""The last version of Fetch that names topics: it tells of a failure on top, and again of each partition."""

_FAIL_TWICE = frozenset((ApiKey.METADATA, ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS))
"""APIs that say it on top, and again of each thing that was asked for."""

_FILLERS: dict[ApiKey, Callable[[Any, Any, ApiError], None]] = {
    ApiKey.PRODUCE: _by_topic_and_partition(
        "produce", "TopicProduceResponse", "PartitionProduceResponse", "topic_data", "responses", "partition_data",
        ("name", "name"),
    ),
    ApiKey.FETCH: _by_topic_and_partition(
        "fetch", "FetchableTopicResponse", "FetchResponsePartitionData", "topics", "responses", "partitions",
        ("topic", "topic"),
    ),
    ApiKey.LIST_OFFSETS: _by_topic_and_partition(
        "fetch", "ListOffsetsTopicResponse", "ListOffsetsPartitionResponse", "topics", "topics", "partitions",
        ("name", "name"),
    ),
    ApiKey.DELETE_RECORDS: _by_topic_and_partition(
        "fetch", "DeleteRecordsTopicResult", "DeleteRecordsPartitionResult", "topics", "topics", "partitions",
        ("name", "name"),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _by_topic_and_partition(
        "fetch", "OffsetForLeaderTopicResult", "OffsetForLeaderEpochResponseEpochEndOffset", "topics", "topics",
        "partitions", ("topic", "topic"),
    ),
    ApiKey.OFFSET_COMMIT: _by_topic_and_partition(
        "offsets", "OffsetCommitResponseTopic", "OffsetCommitResponsePartition", "topics", "topics", "partitions",
        ("name", "name"),
    ),
    ApiKey.METADATA: _metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_partition_reassignments,
    ApiKey.ALTER_CONFIGS: _configs("AlterConfigsResponseAlterConfigsResourceResponse"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs("IncrementalAlterConfigsResponseAlterConfigsResourceResponse"),
    ApiKey.ALTER_CLIENT_QUOTAS: _client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _scram,
}  # fmt: skip
