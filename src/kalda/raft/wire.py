"""Calls and replies to and from Kafka's messages.

A message names the metadata partition, which a call need not name. It has two places for an error: one for errors of
the whole request (another cluster, another partition) and one for those of the partition. Only later versions have the
leader's address; without it the receiver takes the address from its voter set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.base.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO_UUID, Uuid
from kalda.protocol.messages import partitions as f
from kalda.protocol.messages import quorum as q
from kalda.protocol.notation import Request, Response
from kalda.raft import rpc
from kalda.raft.snapshots import MAX_BATCH_BYTES, inspect_fetched
from kalda.raft.voters import OffsetAndEpoch, ReplicaKey, VoterEndpoint

MAX_ENDPOINTS = 100
MAX_FETCH_BYTES = MAX_BATCH_BYTES
"""The limit of what is read for one fetch."""

_FIRST_FETCH_OF_QUORUMS = 12
"""Earlier requests have no epoch of the last record, and are refused; their responses have no leader."""

TOP_LEVEL = (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNSUPPORTED_VERSION)


class NotMetadata(Exception):
    """The request is not for the metadata partition alone."""


def _only_partition(topics: Any) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise NotMetadata
    topic, partition = topics[0], topics[0].partitions[0]
    name = getattr(topic, "topic_name", None) or getattr(topic, "name", None) or getattr(topic, "topic", "")
    index = next(getattr(partition, at) for at in ("partition_index", "partition", "index") if hasattr(partition, at))
    by_id = getattr(topic, "topic_id", ZERO_UUID) == METADATA_TOPIC_ID
    if index != 0 or not (by_id or name == METADATA_TOPIC_NAME):
        raise NotMetadata
    return partition


def _endpoints(listed: Any) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(e.name, e.host, e.port) for e in listed[:MAX_ENDPOINTS])


def _key(node_id: int, directory_id: bytes) -> ReplicaKey:
    return ReplicaKey(node_id, Uuid(bytes(directory_id)))


# Calls.


def request_of(call: rpc.Call) -> Request:
    """The sender chooses the version. What an old version lacks may be left out, or makes the encoding fail (a
    pre-vote)."""
    match call:
        case rpc.VoteCall(cluster_id, epoch, candidate, voter, log_end, pre_vote):
            vote = q.VoteRequestPartitionData(
                replica_epoch=epoch,
                replica_id=candidate.id,
                replica_directory_id=candidate.directory_id,
                voter_directory_id=voter.directory_id if voter else ZERO_UUID,
                last_offset_epoch=log_end.epoch,
                last_offset=log_end.offset,
                pre_vote=pre_vote,
            )
            return q.VoteRequest(
                cluster_id=cluster_id,
                voter_id=voter.id if voter else -1,
                topics=[q.VoteRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[vote])],
            )
        case rpc.BeginEpochCall(cluster_id, epoch, leader_id, voter, endpoints):
            begin = q.BeginQuorumEpochRequestPartitionData(
                voter_directory_id=voter.directory_id if voter else ZERO_UUID, leader_id=leader_id, leader_epoch=epoch
            )
            return q.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter_id=voter.id if voter else -1,
                topics=[q.BeginQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[begin])],
                leader_endpoints=[
                    q.BeginQuorumEpochRequestLeaderEndpoint(name=e.name, host=e.host, port=e.port) for e in endpoints
                ],
            )
        case rpc.EndEpochCall(cluster_id, epoch, leader_id, successors, endpoints):
            end = q.EndQuorumEpochRequestPartitionData(
                leader_id=leader_id,
                leader_epoch=epoch,
                preferred_candidates=[
                    q.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id) for key in successors
                ],
                preferred_successors=[key.id for key in successors],
            )
            return q.EndQuorumEpochRequest(
                cluster_id=cluster_id,
                topics=[q.EndQuorumEpochRequestTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[end])],
                leader_endpoints=[
                    q.EndQuorumEpochRequestLeaderEndpoint(name=e.name, host=e.host, port=e.port) for e in endpoints
                ],
            )
        case rpc.FetchCall():
            return _fetch_request(call)
        case rpc.SnapshotCall(cluster_id, epoch, replica, snapshot, position, max_bytes):
            chunk = q.FetchSnapshotRequestPartitionSnapshot(
                current_leader_epoch=epoch,
                snapshot_id=q.FetchSnapshotRequestSnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
                position=position,
                replica_directory_id=replica.directory_id,
            )
            return q.FetchSnapshotRequest(
                cluster_id=cluster_id,
                replica_id=replica.id,
                max_bytes=max_bytes,
                topics=[q.FetchSnapshotRequestTopicSnapshot(name=METADATA_TOPIC_NAME, partitions=[chunk])],
            )
        case _:
            return _voter_request(call)


def _fetch_request(call: rpc.FetchCall) -> f.FetchRequest:
    partition = f.FetchRequestFetchPartition(
        current_leader_epoch=call.epoch,
        fetch_offset=call.fetch_from.offset,
        last_fetched_epoch=call.fetch_from.epoch,
        partition_max_bytes=call.max_bytes,
        replica_directory_id=call.replica.directory_id,
        high_watermark=call.high_watermark,
    )
    return f.FetchRequest(
        cluster_id=call.cluster_id,
        replica_state=f.FetchRequestReplicaState(replica_id=call.replica.id),
        max_wait_ms=call.max_wait_ms,
        max_bytes=call.max_bytes,
        topics=[
            f.FetchRequestFetchTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=[partition])
        ],
    )


def _voter_request(call: rpc.Call) -> Request:
    match call:
        case rpc.AddVoterCall(cluster_id, voter, endpoints, timeout_ms, ack_when_committed):
            return q.AddRaftVoterRequest(
                cluster_id=cluster_id,
                timeout_ms=timeout_ms,
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                listeners=[q.AddRaftVoterRequestListener(name=e.name, host=e.host, port=e.port) for e in endpoints],
                ack_when_committed=ack_when_committed,
            )
        case rpc.RemoveVoterCall(cluster_id, voter):
            return q.RemoveRaftVoterRequest(
                cluster_id=cluster_id, voter_id=voter.id, voter_directory_id=voter.directory_id
            )
        case rpc.UpdateVoterCall(cluster_id, epoch, voter, endpoints, lowest, highest):
            return q.UpdateRaftVoterRequest(
                cluster_id=cluster_id,
                current_leader_epoch=epoch,
                voter_id=voter.id,
                voter_directory_id=voter.directory_id,
                listeners=[q.UpdateRaftVoterRequestListener(name=e.name, host=e.host, port=e.port) for e in endpoints],
                kraft_version_feature=q.UpdateRaftVoterRequestKRaftVersionFeature(
                    min_supported_version=lowest, max_supported_version=highest
                ),
            )
    raise AssertionError(f"{type(call).__name__} is not sent")


def call_of(request: Request) -> rpc.Call:
    """Raises `NotMetadata` where the request is not for the metadata partition alone."""
    match request:
        case q.VoteRequest():
            p = _only_partition(request.topics)
            return rpc.VoteCall(
                request.cluster_id,
                p.replica_epoch,
                _key(p.replica_id, p.replica_directory_id),
                None if request.voter_id < 0 else _key(request.voter_id, p.voter_directory_id),
                OffsetAndEpoch(p.last_offset, p.last_offset_epoch),
                p.pre_vote,
            )
        case q.BeginQuorumEpochRequest():
            p = _only_partition(request.topics)
            voter = None if request.voter_id < 0 else _key(request.voter_id, p.voter_directory_id)
            endpoints = _endpoints(request.leader_endpoints)
            return rpc.BeginEpochCall(request.cluster_id, p.leader_epoch, p.leader_id, voter, endpoints)
        case q.EndQuorumEpochRequest():
            p = _only_partition(request.topics)
            keys = tuple(_key(r.candidate_id, r.candidate_directory_id) for r in p.preferred_candidates)
            keys = keys or tuple(ReplicaKey(node_id) for node_id in p.preferred_successors)
            endpoints = _endpoints(request.leader_endpoints)
            return rpc.EndEpochCall(request.cluster_id, p.leader_epoch, p.leader_id, keys, endpoints)
        case f.FetchRequest():
            p = _only_partition(request.topics)
            node_id = max(request.replica_id, request.replica_state.replica_id)
            return rpc.FetchCall(
                request.cluster_id,
                p.current_leader_epoch,
                _key(node_id, p.replica_directory_id),
                OffsetAndEpoch(p.fetch_offset, p.last_fetched_epoch),
                max(0, request.max_wait_ms),
                min(max(1, request.max_bytes), MAX_FETCH_BYTES),
                p.high_watermark,
            )
        case q.FetchSnapshotRequest():
            p = _only_partition(request.topics)
            return rpc.SnapshotCall(
                request.cluster_id,
                p.current_leader_epoch,
                _key(request.replica_id, p.replica_directory_id),
                OffsetAndEpoch(p.snapshot_id.end_offset, p.snapshot_id.epoch),
                p.position,
                max(1, request.max_bytes),
            )
        case q.DescribeQuorumRequest():
            _only_partition(request.topics)
            return rpc.DescribeCall()
        case q.AddRaftVoterRequest():
            key = _key(request.voter_id, request.voter_directory_id)
            endpoints = _endpoints(request.listeners)
            return rpc.AddVoterCall(
                request.cluster_id, key, endpoints, max(0, request.timeout_ms), request.ack_when_committed
            )
        case q.RemoveRaftVoterRequest():
            return rpc.RemoveVoterCall(request.cluster_id, _key(request.voter_id, request.voter_directory_id))
        case q.UpdateRaftVoterRequest():
            feature = request.kraft_version_feature
            return rpc.UpdateVoterCall(
                request.cluster_id,
                request.current_leader_epoch,
                _key(request.voter_id, request.voter_directory_id),
                _endpoints(request.listeners),
                feature.min_supported_version,
                feature.max_supported_version,
            )
    raise AssertionError(f"{type(request).__name__} is not a request of the quorum")


# Replies.


def error_response(request: Request, error: ErrorCode) -> Response:
    """The response to a request that the machine does not receive."""
    if isinstance(request, f.FetchRequest):
        return f.FetchResponse(error_code=error)
    if isinstance(request, q.DescribeQuorumRequest):
        assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error
        return q.DescribeQuorumResponse(
            topics=[
                q.DescribeQuorumResponseTopicData(
                    topic_name=topic.topic_name,
                    partitions=[
                        q.DescribeQuorumResponsePartitionData(
                            partition_index=partition.partition_index,
                            error_code=error,
                            error_message="This server does not host this topic-partition.",
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
    for request_class, response in _RESPONSES:
        if isinstance(request, request_class):
            return response(error_code=error)
    raise AssertionError(f"{type(request).__name__} is not a request of the quorum")


_RESPONSES: tuple[tuple[type[Request], type[Response]], ...] = (
    (q.VoteRequest, q.VoteResponse),
    (q.BeginQuorumEpochRequest, q.BeginQuorumEpochResponse),
    (q.EndQuorumEpochRequest, q.EndQuorumEpochResponse),
    (q.FetchSnapshotRequest, q.FetchSnapshotResponse),
    (q.AddRaftVoterRequest, q.AddRaftVoterResponse),
    (q.RemoveRaftVoterRequest, q.RemoveRaftVoterResponse),
    (q.UpdateRaftVoterRequest, q.UpdateRaftVoterResponse),
)


def response_of(
    request: Request, reply: rpc.Reply, version: int, listener: str, wall_ms: Callable[[int], int]
) -> Response:
    """`wall_ms` converts a time of the machine's clock to one of the wall clock."""
    header = reply.header
    error, epoch, leader = header.error, header.epoch, -1 if header.leader_id is None else header.leader_id
    if error in TOP_LEVEL and not isinstance(reply, rpc.VoterChangeReply | rpc.DescribeReply):
        return error_response(request, error)
    address = next((e for e in header.leader_endpoints if e.name == listener), None)
    match reply:
        case rpc.VoteReply(_, granted):
            vote = q.VoteResponsePartitionData(
                error_code=error, leader_id=leader, leader_epoch=epoch, vote_granted=granted
            )
            response: Any = q.VoteResponse(
                topics=[q.VoteResponseTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[vote])]
            )
            return _with_leader(response, q.VoteResponseNodeEndpoint, leader, address, version >= 1)
        case rpc.BeginEpochReply():
            begin = q.BeginQuorumEpochResponsePartitionData(error_code=error, leader_id=leader, leader_epoch=epoch)
            response = q.BeginQuorumEpochResponse(
                topics=[q.BeginQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[begin])]
            )
            return _with_leader(response, q.BeginQuorumEpochResponseNodeEndpoint, leader, address, version >= 1)
        case rpc.EndEpochReply():
            end = q.EndQuorumEpochResponsePartitionData(error_code=error, leader_id=leader, leader_epoch=epoch)
            response = q.EndQuorumEpochResponse(
                topics=[q.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[end])]
            )
            return _with_leader(response, q.EndQuorumEpochResponseNodeEndpoint, leader, address, version >= 1)
        case rpc.FetchReply():
            response = f.FetchResponse(
                responses=[
                    f.FetchableTopicResponse(
                        topic=METADATA_TOPIC_NAME,
                        topic_id=METADATA_TOPIC_ID,
                        partitions=[_fetch_partition(reply, error, leader, epoch, version)],
                    )
                ]
            )
            return _with_leader(response, f.FetchResponseNodeEndpoint, leader, address, version >= 16)
        case rpc.SnapshotReply(_, snapshot, position, size, data):
            chunk = q.FetchSnapshotResponsePartitionSnapshot(
                error_code=error,
                snapshot_id=q.FetchSnapshotResponseSnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
                size=size,
                position=position,
                unaligned_records=b"" if data is None else data,
                current_leader=q.FetchSnapshotResponseLeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch),
            )
            response = q.FetchSnapshotResponse(
                topics=[q.FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC_NAME, partitions=[chunk])]
            )
            return _with_leader(response, q.FetchSnapshotResponseNodeEndpoint, leader, address, version >= 1)
        case rpc.DescribeReply():
            return _describe(reply, error, leader, epoch, version, wall_ms)
        case rpc.VoterChangeReply(_, message):
            return _voter_response(request, error, message, leader, epoch, address)


def _with_leader(response: Any, node: Any, leader: int, address: VoterEndpoint | None, has_endpoints: bool) -> Response:
    if has_endpoints and leader >= 0 and address is not None:
        response.node_endpoints = [node(node_id=leader, host=address.host, port=address.port)]
    assert isinstance(response, Response)
    return response


def _fetch_partition(
    reply: rpc.FetchReply, error: int, leader: int, epoch: int, version: int
) -> f.FetchResponsePartitionData:
    partition = f.FetchResponsePartitionData(
        error_code=error,
        high_watermark=reply.high_watermark,
        log_start_offset=reply.log_start_offset,
        records=b"" if reply.records is None else reply.records,
    )
    if version < _FIRST_FETCH_OF_QUORUMS:
        return partition
    partition.current_leader = f.FetchResponseLeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    if reply.diverging is not None:
        end_offset, at_epoch = reply.diverging
        partition.diverging_epoch = f.FetchResponseEpochEndOffset(epoch=at_epoch, end_offset=end_offset)
    if reply.snapshot is not None:
        end_offset, at_epoch = reply.snapshot
        partition.snapshot_id = f.FetchResponseSnapshotId(end_offset=end_offset, epoch=at_epoch)
    return partition


def _voter_response(
    request: Request, error: int, message: str, leader: int, epoch: int, address: VoterEndpoint | None
) -> Response:
    text = message if error else None
    if isinstance(request, q.AddRaftVoterRequest):
        return q.AddRaftVoterResponse(error_code=error, error_message=text)
    if isinstance(request, q.RemoveRaftVoterRequest):
        return q.RemoveRaftVoterResponse(error_code=error, error_message=text)
    assert isinstance(request, q.UpdateRaftVoterRequest)
    current = q.CurrentLeader(leader_id=leader, leader_epoch=epoch)
    if address is not None:
        current.host, current.port = address.host, address.port
    return q.UpdateRaftVoterResponse(error_code=error, current_leader=current)


def _describe_refusal(error: int, message: str) -> q.DescribeQuorumResponse:
    partition = q.DescribeQuorumResponsePartitionData(error_code=error, error_message=message)
    topic = q.DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[partition])
    return q.DescribeQuorumResponse(topics=[topic])


def _describe(
    reply: rpc.DescribeReply, error: int, leader: int, epoch: int, version: int, wall_ms: Callable[[int], int]
) -> q.DescribeQuorumResponse:
    if error:
        return _describe_refusal(error, "this node does not lead the quorum")

    def state(progress: rpc.ReplicaProgress) -> q.DescribeQuorumResponseReplicaState:
        replica = q.DescribeQuorumResponseReplicaState(
            replica_id=progress.key.id,
            log_end_offset=progress.log_end_offset,
            last_fetch_timestamp=wall_ms(progress.last_fetch_ms) if progress.last_fetch_ms >= 0 else -1,
            last_caught_up_timestamp=wall_ms(progress.last_caught_up_ms) if progress.last_caught_up_ms >= 0 else -1,
        )
        if version >= 2:
            replica.replica_directory_id = progress.key.directory_id
        return replica

    partition = q.DescribeQuorumResponsePartitionData(
        leader_id=leader,
        leader_epoch=epoch,
        high_watermark=reply.high_watermark,
        current_voters=[state(progress) for progress in reply.voters],
        observers=[state(progress) for progress in reply.observers],
    )
    response = q.DescribeQuorumResponse(
        topics=[q.DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC_NAME, partitions=[partition])]
    )
    if version >= 2:
        response.nodes = [
            q.Node(
                node_id=node_id,
                listeners=[q.DescribeQuorumResponseListener(name=e.name, host=e.host, port=e.port) for e in endpoints],
            )
            for node_id, endpoints in reply.nodes
        ]
    return response


def reply_of(call: rpc.Call, response: Response, listener: str) -> rpc.Reply:
    """The response to `call`. One that is not for the metadata partition alone becomes an INVALID_REQUEST."""
    try:
        return _answer_of(call, response, listener)
    except (NotMetadata, ValueError):
        return failed_reply(call, ErrorCode.INVALID_REQUEST)


def failed_reply(call: rpc.Call, error: ErrorCode) -> rpc.Reply:
    """A reply with an error and without an epoch."""
    header = rpc.ReplyHeader(error, -1)
    match call:
        case rpc.VoteCall():
            return rpc.VoteReply(header)
        case rpc.BeginEpochCall():
            return rpc.BeginEpochReply(header)
        case rpc.EndEpochCall():
            return rpc.EndEpochReply(header)
        case rpc.FetchCall():
            return rpc.FetchReply(header)
        case rpc.SnapshotCall():
            return rpc.SnapshotReply(header, call.snapshot)
        case _:
            return rpc.VoterChangeReply(header)


def _header(error: int, leader_id: int, epoch: int, response: Any, listener: str) -> rpc.ReplyHeader:
    leader = None if leader_id < 0 else leader_id
    endpoints = tuple(
        VoterEndpoint(listener, node.host, node.port)
        for node in response.node_endpoints[:1]
        if node.node_id == leader_id
    )
    return rpc.ReplyHeader(ErrorCode(error), epoch, leader, endpoints)


def _answer_of(call: rpc.Call, response: Response, listener: str) -> rpc.Reply:
    top = getattr(response, "error_code", 0)
    if top:
        return failed_reply(call, ErrorCode(top))
    match response:
        case q.VoteResponse():
            p = _only_partition(response.topics)
            header = _header(p.error_code, p.leader_id, p.leader_epoch, response, listener)
            return rpc.VoteReply(header, p.vote_granted)
        case q.BeginQuorumEpochResponse():
            p = _only_partition(response.topics)
            return rpc.BeginEpochReply(_header(p.error_code, p.leader_id, p.leader_epoch, response, listener))
        case q.EndQuorumEpochResponse():
            p = _only_partition(response.topics)
            return rpc.EndEpochReply(_header(p.error_code, p.leader_id, p.leader_epoch, response, listener))
        case f.FetchResponse():
            return _fetch_reply(response, listener)
        case q.FetchSnapshotResponse():
            p = _only_partition(response.topics)
            leader = p.current_leader
            header = _header(p.error_code, leader.leader_id, leader.leader_epoch, response, listener)
            snapshot = OffsetAndEpoch(p.snapshot_id.end_offset, p.snapshot_id.epoch)
            return rpc.SnapshotReply(header, snapshot, p.position, p.size, p.unaligned_records)
        case q.AddRaftVoterResponse() | q.RemoveRaftVoterResponse() | q.UpdateRaftVoterResponse():
            return failed_reply(call, ErrorCode.NONE)
    raise NotMetadata


def _fetch_reply(response: f.FetchResponse, listener: str) -> rpc.FetchReply:
    p = _only_partition(response.responses)
    leader = p.current_leader
    diverging = OffsetAndEpoch(p.diverging_epoch.end_offset, p.diverging_epoch.epoch)
    snapshot = OffsetAndEpoch(p.snapshot_id.end_offset, p.snapshot_id.epoch)
    records = p.records if p.records is not None else b""
    return rpc.FetchReply(
        _header(p.error_code, leader.leader_id, leader.leader_epoch, response, listener),
        p.high_watermark,
        p.log_start_offset,
        diverging if diverging.offset >= 0 and diverging.epoch >= 0 else None,
        snapshot if snapshot.offset >= 0 and snapshot.epoch >= 0 else None,
        records=records,
        batches=inspect_fetched(records),
    )
