"""WriteTxnMarkers (27) and DescribeProducers (61): transactions as the partitions of this broker see them."""

from __future__ import annotations

from itertools import islice

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import is_topic_name, validate_topic_name
from kalda.base.scheduling import Pending
from kalda.broker.handlers.shared import error_on_items
from kalda.broker.module import Module
from kalda.broker.replicas.opening import MAX_WAIT_MS, OpeningPartitions
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.rows import MAX_ELEMENTS_BETWEEN_NODES, Authorization, Items, QuotaClass, Row, message_of
from kalda.protocol.access import CLUSTER_RESOURCE_NAME, READ_TOPIC, Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kalda.replication.markers import MarkerWriter, named_partitions
from kalda.replication.replica_manager import ReplicaManager


class MarkerHandlers(Module):
    """Markers, and the producers that partitions have state of."""

    def __init__(
        self, replicas: ReplicaManager, writer: MarkerWriter, opening: OpeningPartitions | None = None
    ) -> None:
        """Markers for partitions that are `opening` wait until they are open; with None, none is."""
        self._replicas = replicas
        self._writer = writer
        self._opening = opening if opening is not None else OpeningPartitions(replicas.timers, replicas.background)

    def rows(self) -> list[Row]:
        """Both APIs."""
        return [
            Row(
                ApiKey.WRITE_TXN_MARKERS,
                self.write_txn_markers,
                write_txn_markers_failed,
                _may_write_markers,
                QuotaClass.EXEMPT,
                max_elements=MAX_ELEMENTS_BETWEEN_NODES,
            ),
            Row(
                ApiKey.DESCRIBE_PRODUCERS,
                self.describe_producers,
                describe_producers_failed,
                Authorization.PER_ITEM,
                items=Items(READ_TOPIC, describe_producers_failed, name_of=_legal_name).stage,
                has_large_answer=True,
            ),
        ]

    def write_txn_markers(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
        """Append the markers, and answer when they are committed."""
        if self._opening.partitions:
            named = ((topic, index) for _, topic, index in named_partitions(request))
            waiting = self._opening.wait(context, request, self.write_txn_markers, named, MAX_WAIT_MS)
            if waiting is not None:
                return waiting
        return self._writer.write(request)

    def describe_producers(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> Steps[DescribeProducersResponse]:
        """The state of every producer in the log of each partition (KIP-664). A log may have millions: in steps, and a
        partition that is named again is refused."""
        response = DescribeProducersResponse()
        described: set[tuple[str, int]] = set()
        in_step = 0
        for topic in request.topics:
            answer = TopicResponse(name=topic.name)
            response.topics.append(answer)
            for index in topic.partition_indexes:
                result = PartitionResponse(partition_index=index)
                answer.partitions.append(result)
                in_step += 1
                if in_step >= ITEMS_A_STEP:
                    in_step = 0
                    yield
                try:
                    validate_topic_name(topic.name)
                    if (topic.name, index) in described:
                        raise ApiError(ErrorCode.INVALID_REQUEST, f"{topic.name}-{index} is named more than once")
                    described.add((topic.name, index))
                    log = self._replicas.get(topic.name, index).log
                    log.check_online()
                except ApiError as error:
                    result.error_code = error.code
                    result.error_message = message_of(error) or f"this broker has no log of {topic.name}-{index}"
                    continue
                ids = iter([state.producer_id for state in log.producer_states])
                while batch := list(islice(ids, ITEMS_A_STEP)):
                    states = (log.producer_states.get(producer_id) for producer_id in batch)
                    result.active_producers += [
                        ProducerState(
                            producer_id=state.producer_id,
                            producer_epoch=state.epoch,
                            last_sequence=state.last_sequence,
                            last_timestamp=state.last_timestamp,
                            coordinator_epoch=state.coordinator_epoch,
                            current_txn_start_offset=state.txn_first_offset,
                        )
                        for state in states
                        if state is not None
                    ]
                    in_step += len(batch)
                    if in_step >= ITEMS_A_STEP:
                        in_step = 0
                        yield
        return response


def _may_write_markers(caller: Caller, request: WriteTxnMarkersRequest) -> ApiError | None:
    """Brokers, and whoever may alter the cluster: a tool that ends a hanging transaction."""
    if caller.allows(AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False):
        return None
    return caller.refusal_on_cluster(AclOperation.CLUSTER_ACTION)


def _legal_name(topic: DescribeProducersRequestTopicRequest) -> str | None:
    """The topic, unless its name is refused whoever the caller is."""
    return topic.name if is_topic_name(topic.name) else None


# How each API reports that the whole request failed.


write_txn_markers_failed = error_on_items("markers.topics.partitions", "markers.topics.partition_indexes")


describe_producers_failed = error_on_items("topics.partitions", "topics.partition_indexes")
