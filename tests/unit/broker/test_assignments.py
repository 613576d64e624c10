"""Directory assignments: many in one request, one request at a time, sent again until they are recorded."""

from __future__ import annotations

from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.broker.replicas.assignments import DirectoryAssignments
from kalda.protocol.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectoryData,
    AssignReplicasToDirsResponsePartitionData,
    AssignReplicasToDirsResponseTopicData,
)

TOPIC, OTHER = Uuid(b"t" * 16), Uuid(b"o" * 16)
LEFT, RIGHT = Uuid(b"l" * 16), Uuid(b"r" * 16)


class _Timer:
    def cancel(self) -> None:
        return None


class Controller:
    """Collects requests; timers fire when the test calls `turn`."""

    def __init__(self) -> None:
        self.requests: list[AssignReplicasToDirsRequest] = []
        self.pending: Pending[AssignReplicasToDirsResponse] = Pending()
        self.delays: list[int] = []
        self.recorded: set[int] = set()
        self._callbacks: list[Callable[[], None]] = []
        self.assignments = DirectoryAssignments(
            1, lambda: 7, self._take, self, lambda _, index, __: index not in self.recorded
        )

    def call_later_ms(self, delay_ms: int, callback: Callable[[], None]) -> _Timer:
        self.delays.append(delay_ms)
        self._callbacks.append(callback)
        return _Timer()

    def _take(self, request: AssignReplicasToDirsRequest) -> Pending[AssignReplicasToDirsResponse]:
        self.requests.append(request)
        self.pending = Pending()
        return self.pending

    def turn(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @property
    def last(self) -> list[tuple[bytes, bytes, int]]:
        return [
            (bytes(directory.id[:1]), bytes(topic.topic_id[:1]), partition.partition_index)
            for directory in self.requests[-1].directories
            for topic in directory.topics
            for partition in topic.partitions
        ]

    def answer(self, *codes: int) -> None:
        """One code a partition, in the order of the request."""
        left = list(codes)
        self.pending.complete(
            AssignReplicasToDirsResponse(
                directories=[
                    AssignReplicasToDirsResponseDirectoryData(
                        id=directory.id,
                        topics=[
                            AssignReplicasToDirsResponseTopicData(
                                topic_id=topic.topic_id,
                                partitions=[
                                    AssignReplicasToDirsResponsePartitionData(
                                        partition_index=partition.partition_index, error_code=left.pop(0)
                                    )
                                    for partition in topic.partitions
                                ],
                            )
                            for topic in directory.topics
                        ],
                    )
                    for directory in self.requests[-1].directories
                ]
            )
        )


def test_assignments_of_one_turn_go_in_one_request() -> None:
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, LEFT)
    controller.assignments.placed(TOPIC, 1, RIGHT)
    controller.assignments.placed(OTHER, 0, LEFT)
    controller.turn()
    assert controller.last == [(b"l", b"t", 0), (b"l", b"o", 0), (b"r", b"t", 1)]
    assert controller.requests[0].broker_epoch == 7
    controller.assignments.placed(TOPIC, 2, LEFT)
    controller.turn()
    assert len(controller.requests) == 1, "one request at a time"
    controller.answer(0, 0, 0)
    controller.turn()
    assert controller.last == [(b"l", b"t", 2)]
    controller.answer(0)
    assert len(controller.assignments) == 0


def test_a_refused_assignment_is_sent_again_after_longer_and_longer_pauses() -> None:
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, LEFT)
    controller.assignments.placed(TOPIC, 1, LEFT)
    controller.turn()
    controller.answer(0, ErrorCode.UNKNOWN_SERVER_ERROR)
    controller.turn()
    assert controller.last == [(b"l", b"t", 1)]
    for _ in range(10):
        controller.pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        controller.turn()
    assert controller.delays == [0, 100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000, 10000]


def test_a_newer_directory_replaces_an_older_one_and_a_removed_replica_is_left_out() -> None:
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, LEFT)
    controller.assignments.placed(TOPIC, 1, LEFT)
    controller.turn()
    controller.assignments.placed(TOPIC, 0, RIGHT)
    controller.recorded.add(1)
    controller.pending.fail(ApiError(ErrorCode.NOT_CONTROLLER))
    controller.turn()
    assert controller.last == [(b"r", b"t", 0)]


def test_a_directory_that_may_have_been_recorded_is_corrected_until_the_controller_answers() -> None:
    """The metadata has the replica on the left all along, but a lost request may have recorded another directory."""
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, RIGHT)
    controller.turn()
    controller.assignments.placed(TOPIC, 0, LEFT)
    controller.recorded.add(0)
    for _ in range(3):
        controller.pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
        controller.turn()
        assert controller.last == [(b"l", b"t", 0)]
    assert len(controller.requests) == 4
    controller.answer(0)
    controller.turn()
    assert (len(controller.requests), len(controller.assignments)) == (4, 0)


def test_a_replica_that_is_recorded_already_and_places_another_makes_no_second_request() -> None:
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, LEFT, lambda: controller.assignments.placed(TOPIC, 2, LEFT))
    controller.assignments.placed(TOPIC, 1, LEFT)
    controller.recorded.add(0)
    controller.turn()
    controller.turn()
    assert controller.last == [(b"l", b"t", 1)]
    assert len(controller.requests) == 1
    controller.answer(0)
    controller.turn()
    assert controller.last == [(b"l", b"t", 2)]


def test_a_directory_of_a_deleted_topic_is_not_corrected() -> None:
    controller = Controller()
    for directory in (RIGHT, LEFT):
        controller.assignments.placed(TOPIC, 0, directory)
        controller.turn()
        if directory is RIGHT:
            controller.pending.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT))
    controller.recorded.add(0)
    controller.answer(ErrorCode.UNKNOWN_TOPIC_ID)
    controller.turn()
    assert len(controller.assignments) == 0


def test_a_metadata_version_without_directories_is_sent_one_request() -> None:
    controller = Controller()
    controller.assignments.placed(TOPIC, 0, LEFT)
    controller.turn()
    controller.pending.fail(ApiError(ErrorCode.UNSUPPORTED_VERSION))
    assert len(controller.assignments) == 0
