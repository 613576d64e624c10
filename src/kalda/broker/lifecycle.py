"""A broker's life, as it and the controller agree on it (KIP-631).

The broker registers, then sends heartbeats; their answers move it on:

    NOT_RUNNING --start--> STARTING --caught up--> RECOVERY --unfenced--> RUNNING
        --begin_controlled_shutdown--> PENDING_CONTROLLED_SHUTDOWN --shouldShutDown--> SHUTTING_DOWN

It asks to stay fenced until it is ready, so no client is sent to a broker that still recovers its logs. At most one
request is under way; what becomes urgent meanwhile is sent right after. A broker that cannot register within
`initial.broker.registration.timeout.ms` gives up; but not while this node itself gets on with replaying the metadata
log, since it may be its own controller, or all others as busy, who has to answer.

A broker that cannot tell the controller of a failed directory within `log.dir.failure.timeout.ms` gives up as well: it
would stay the leader of partitions that it cannot serve.

A machine without sockets or clocks: it sends through an injected channel and waits on injected timers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Timer, Timers
from kalda.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
)
from kalda.protocol.notation import Request

log = logging.getLogger("kalda.lifecycle")

_CATCH_UP_RETRY_MS = 10


class BrokerState(IntEnum):
    """Kafka's states, by the values that its metrics show."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class BrokerIdentity(NamedTuple):
    """What a broker registers as."""

    broker_id: int
    cluster_id: str
    incarnation_id: Uuid
    """The id of this process: another one with the same broker id is refused while this one is alive."""
    listeners: list[BrokerRegistrationRequestListener]
    features: list[BrokerRegistrationRequestFeature]
    rack: str | None
    log_dirs: Callable[[], list[Uuid]]
    """The ids of the directories that are online, at the moment of the call."""
    previous_broker_epoch: int = -1
    """The epoch in the markers of the last clean stop; -1 where the last stop was not clean, or there was none."""


class Milestones:
    """Each completes once, in this order, and none fails. Those that the broker does not reach stay pending."""

    __slots__ = ("caught_up", "may_shut_down", "registered", "unfenced")

    def __init__(self) -> None:
        self.registered: Pending[None] = Pending()
        self.caught_up: Pending[None] = Pending()
        """The broker has applied the metadata up to what was committed when it registered."""
        self.unfenced: Pending[None] = Pending()
        self.may_shut_down: Pending[None] = Pending()
        """The controller has moved all leaderships away; or `close` was called, or there was nothing to move."""


def _nothing_to_replay() -> None:
    return None


class BrokerLifecycle:
    """The broker's side of the conversation."""

    def __init__(
        self,
        identity: BrokerIdentity,
        send: Callable[[Request], Pending[Any]],
        timers: Timers,
        metadata_offset: Callable[[], int],
        on_fatal: Callable[[str], None],
        *,
        heartbeat_interval_ms: int,
        registration_timeout_ms: int,
        dir_failure_timeout_ms: int,
        replayed: Callable[[], int | None] = _nothing_to_replay,
    ) -> None:
        """`replayed` tells how far this node's replay of the metadata log is, None when it is through."""
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1
        self.milestones = Milestones()
        self._identity = identity
        self._send = send
        self._timers = timers
        self._metadata_offset = metadata_offset
        self._on_fatal = on_fatal
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._dir_failure_timeout_ms = dir_failure_timeout_ms
        self._replayed = replayed
        self._replayed_before: int | None = None
        self._registered = False
        self._ready_to_unfence = False
        self._in_flight = False
        self._again_at_once = False
        self._timer: Timer | None = None
        self._registration_timer: Timer | None = None
        self._cordoned_dirs: list[Uuid] | None = None
        self._offline_dirs: list[Uuid] = []
        """Failed directories: every heartbeat names them all."""
        self._telling: list[Uuid] = []
        """Those that the heartbeat under way names."""
        self._untold_dirs: dict[Uuid, Timer] = {}
        """Those that no answered heartbeat has named, and how long that may go on."""

    # -- told from outside

    def start(self) -> None:
        """Begin to register."""
        assert self.state is BrokerState.NOT_RUNNING, f"start in state {self.state.name}"
        self.state = BrokerState.STARTING
        self._replayed_before = self._replayed()
        self._wait_for_registration()
        self._communicate()

    def set_ready_to_unfence(self) -> None:
        """Recovery is done: ask to be unfenced."""
        self._ready_to_unfence = True
        self._communicate()

    def resend_registration(self) -> None:
        """Register again, with what has changed since."""
        self._registered = False
        self._communicate()

    def on_directory_failure(self, directory: Uuid) -> None:
        """Tell the controller that a log directory is gone."""
        if directory not in self._offline_dirs:
            self._offline_dirs.append(directory)
            if self.state is not BrokerState.SHUTTING_DOWN:
                self._untold_dirs[directory] = self._timers.call_later_ms(
                    self._dir_failure_timeout_ms, self._dir_failure_timed_out
                )
        self._communicate()

    def set_cordoned_dirs(self, directories: list[Uuid] | None) -> None:
        """Tell the controller in which log directories no new replica may be; None where the metadata cannot say."""
        if directories != self._cordoned_dirs:
            self._cordoned_dirs = directories
            self._communicate()

    def on_metadata_offset(self) -> None:
        """The broker has replayed more metadata: while starting, that is worth a heartbeat at once."""
        if self._registered and self.state is BrokerState.STARTING:
            self._communicate()

    def begin_controlled_shutdown(self) -> None:
        """Ask the controller to move leadership away. A broker that was never unfenced just stops."""
        if self.state is BrokerState.RUNNING:
            self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            self._communicate()
        else:
            self._shut_down()

    def close(self) -> None:
        """Say no more."""
        self._shut_down()

    # -- communication

    def _communicate(self) -> None:
        if self.state in (BrokerState.NOT_RUNNING, BrokerState.SHUTTING_DOWN):
            return
        if self._in_flight:
            self._again_at_once = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._in_flight = True
        if self._registered:
            self._send(self._heartbeat()).then(self._on_heartbeat)
        else:
            self._send(self._registration()).then(self._on_registration)

    def _schedule(self, delay_ms: int) -> None:
        self._in_flight = False
        if self._again_at_once:
            self._again_at_once = False
            delay_ms = 0
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._timer = self._timers.call_later_ms(delay_ms, self._communicate)

    def _registration(self) -> BrokerRegistrationRequest:
        identity = self._identity
        return BrokerRegistrationRequest(
            broker_id=identity.broker_id,
            cluster_id=identity.cluster_id,
            incarnation_id=identity.incarnation_id,
            listeners=identity.listeners,
            features=identity.features,
            rack=identity.rack,
            log_dirs=sorted(identity.log_dirs()),
            previous_broker_epoch=identity.previous_broker_epoch,
        )

    def _on_registration(self, response: BrokerRegistrationResponse | None, error: ApiError | None) -> None:
        failure = _failure(response, error)
        if failure is not None:
            log.warning("registration of broker %d failed: %s", self._identity.broker_id, failure)
            self._schedule(min(1_000, self._heartbeat_interval_ms))
            return
        assert response is not None
        self.broker_epoch = response.broker_epoch
        self._registered = True
        if self._registration_timer is not None:
            self._registration_timer.cancel()
            self._registration_timer = None
        log.info("broker %d registered with epoch %d", self._identity.broker_id, self.broker_epoch)
        if not self.milestones.registered.done:
            self.milestones.registered.complete(None)
        self._schedule(0)

    def _wait_for_registration(self) -> None:
        self._registration_timer = self._timers.call_later_ms(
            self._registration_timeout_ms, self._registration_timed_out
        )

    def _registration_timed_out(self) -> None:
        before, self._replayed_before = self._replayed_before, self._replayed()
        if self._replayed_before != before:
            # From the end of the replay on it has the whole time.
            log.info("broker %d is not registered yet, but got further in the metadata", self._identity.broker_id)
            self._wait_for_registration()
        elif self.state is not BrokerState.SHUTTING_DOWN:
            self._on_fatal("no registration with the controller quorum within initial.broker.registration.timeout.ms")

    def _dir_failure_timed_out(self) -> None:
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._on_fatal("no controller could be told of a failed directory within log.dir.failure.timeout.ms")

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        self._telling = list(self._offline_dirs)
        return BrokerHeartbeatRequest(
            broker_id=self._identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._ready_to_unfence,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=self._telling,
            cordoned_log_dirs=self._cordoned_dirs,
        )

    def _on_heartbeat(self, response: BrokerHeartbeatResponse | None, error: ApiError | None) -> None:
        failure = _failure(response, error)
        if failure is not None:
            log.warning("heartbeat of broker %d failed: %s", self._identity.broker_id, failure)
            if failure.code is ErrorCode.STALE_BROKER_EPOCH:
                self._registered = False
            self._schedule(min(1_000, self._heartbeat_interval_ms))
            return
        assert response is not None
        for directory in self._telling:
            if (timer := self._untold_dirs.pop(directory, None)) is not None:
                timer.cancel()
        delay_ms = self._heartbeat_interval_ms
        if self.state is BrokerState.STARTING:
            if response.is_caught_up:
                log.info("broker %d has caught up with the metadata", self._identity.broker_id)
                self.state = BrokerState.RECOVERY
                self._schedule(delay_ms)
                self.milestones.caught_up.complete(None)
                return
            delay_ms = _CATCH_UP_RETRY_MS
        elif self.state is BrokerState.RECOVERY:
            if not response.is_fenced:
                log.info("broker %d is unfenced", self._identity.broker_id)
                self.state = BrokerState.RUNNING
                self._schedule(delay_ms)
                self.milestones.unfenced.complete(None)
                return
            if self._ready_to_unfence:
                delay_ms = _CATCH_UP_RETRY_MS
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if response.should_shut_down:
                self._shut_down()
                return
            delay_ms = min(delay_ms, 50)
        self._schedule(delay_ms)

    def _shut_down(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        for timer in (self._timer, self._registration_timer, *self._untold_dirs.values()):
            if timer is not None:
                timer.cancel()
        if not self.milestones.may_shut_down.done:
            self.milestones.may_shut_down.complete(None)


def _failure(
    response: BrokerRegistrationResponse | BrokerHeartbeatResponse | None, error: ApiError | None
) -> ApiError | None:
    """Why there is no answer, or what is wrong by the one that came."""
    if response is None or not response.error_code:
        return error
    return ApiError(ErrorCode(response.error_code))
