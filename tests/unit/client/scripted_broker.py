"""A broker on loopback with scripted responses, for failures that real brokers rarely show.

`answers` has a function for each supported API: request and version in, response out; None instead of a response
closes the connection. Each connection has a thread and handles one request at a time. `received` has all requests.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.protocol.apis import API, ApiKey, request_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_request_header, encode_response
from kalda.protocol.messages.groups import FindCoordinatorResponse
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kalda.protocol.messages.partitions import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    InitProducerIdResponse,
)

Answer = Callable[[Any, int], Any]
TOPIC_ID = Uuid(bytes(range(16)))


class ScriptedBroker:
    """Answers Metadata with `nodes` (itself only, unless a test adds others) and `topics`: leaders by topic name."""

    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id
        self.host = "127.0.0.1"
        """What Metadata names; connections come by 127.0.0.1."""
        self.topics: dict[str, list[int]] = {}
        self.topic_id = TOPIC_ID
        self.leader_epoch = 5
        self.features: dict[str, int] = {}
        """Finalized levels by feature."""
        self.answers: dict[ApiKey, Answer] = {ApiKey.METADATA: self._metadata}
        self.received: list[tuple[ApiKey, int, Any]] = []
        broker = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                while (size := self._read(4)) and broker.reply(self._read(struct.unpack(">i", size)[0]), self.request):
                    pass

            def _read(self, count: int) -> bytes:
                data = b""
                while len(data) < count and (chunk := self.request.recv(count - len(data))):
                    data += chunk
                return data if len(data) == count else b""

        class Listener(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Listener(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.nodes: dict[int, int] = {node_id: self.port}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def requests(self, key: ApiKey) -> list[Any]:
        """The requests of one API that were received."""
        return [request for api_key, _, request in self.received if api_key is key]

    def reply(self, frame: bytes, peer: Any) -> bool:
        """Answer a frame; False closes the connection."""
        header = decode_request_header(frame)
        key = ApiKey(header.api_key)
        request = decode(request_class(key), frame, header.api_version, header.body_at)
        if key is ApiKey.API_VERSIONS:
            response: Any = self._versions()
        else:
            self.received.append((key, header.api_version, request))
            response = self.answers[key](request, header.api_version)
        if response is None:
            return False
        body = b"".join(encode_response(header.correlation_id, response, header.api_version))
        peer.sendall(struct.pack(">i", len(body)) + body)
        return True

    def _versions(self) -> ApiVersionsResponse:
        keys = [ApiKey.API_VERSIONS, *self.answers]
        served = [
            ApiVersion(api_key=k, min_version=API[k].lowest, max_version=API[k].highest_served(False)) for k in keys
        ]
        finalized = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.features.items()
        ]
        epoch = 1 if finalized else -1
        return ApiVersionsResponse(api_keys=served, finalized_features=finalized, finalized_features_epoch=epoch)

    def _metadata(self, request: Any, version: int) -> MetadataResponse:
        names = self.topics if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            cluster_id="scripted",
            controller_id=self.node_id,
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=self.host, port=port)
                for node_id, port in self.nodes.items()
            ],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            return MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return MetadataResponseTopic(
            name=name,
            topic_id=self.topic_id if name == next(iter(self.topics)) else ZERO_UUID,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=self.leader_epoch,
                    replica_nodes=[1],
                    isr_nodes=[1],
                    error_code=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                )
                for index, leader in enumerate(self.topics[name])
            ],
        )


class AcknowledgingBroker(ScriptedBroker):
    """Acknowledges every batch to its topic, `t`."""

    def __init__(self) -> None:
        super().__init__()
        self.topics["t"] = [1]
        self.answers[ApiKey.PRODUCE] = self._produce

    def _produce(self, request: Any, _version: int) -> Any:
        results = [PartitionProduceResponse(index=data.index) for data in request.topic_data[0].partition_data]
        topic_id = request.topic_data[0].topic_id
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", topic_id=topic_id, partition_responses=results)]
        )


class TransactionalBroker(AcknowledgingBroker):
    """Coordinates transactions too."""

    def __init__(self, version: int = 2) -> None:
        """`version` is that of transactions."""
        super().__init__()
        self.features["transaction.version"] = version
        self.answers |= {
            ApiKey.FIND_COORDINATOR: lambda *_: FindCoordinatorResponse(
                node_id=self.node_id, host="127.0.0.1", port=self.port
            ),
            ApiKey.INIT_PRODUCER_ID: lambda *_: InitProducerIdResponse(producer_id=1),
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add,
            ApiKey.END_TXN: lambda *_: EndTxnResponse(),
        }

    @property
    def outcomes(self) -> list[bool]:
        """Whether each transaction that ended was to be committed."""
        return [request.committed for request in self.requests(ApiKey.END_TXN)]

    @staticmethod
    def _add(request: Any, _version: int) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(partition_index=index) for index in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )
