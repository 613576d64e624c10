"""The lives of a broker and of a controller, as they and the active controller agree on them (KIP-631, KIP-919).

The broker registers, then sends heartbeats; their responses change its state:

    NOT_RUNNING --start--> STARTING --caught up--> RECOVERY --unfenced--> RUNNING
        --begin_controlled_shutdown--> PENDING_CONTROLLED_SHUTDOWN --shouldShutDown--> SHUTTING_DOWN

Its heartbeats ask to keep it fenced until `set_ready_to_unfence`, so no client is sent to a broker that still recovers
its logs. Until the broker shuts down, either one request is under way or a timer is set, never both; what becomes
urgent meanwhile is sent when the request is answered.

A broker that cannot register within `initial.broker.registration.timeout.ms` stops the node. The time starts again
while this node makes progress in replaying the metadata log: the controller that has to answer may be its own, or all
controllers may be as busy.

A broker that an administrator unregisters stays away until it is restarted, as in Apache Kafka: its heartbeats get
STALE_BROKER_EPOCH from then on, and it does not register by itself. So does a broker whose id another process has
registered. A broker registers anew only when the metadata has this process with another epoch: it was registered twice,
because a request was sent again.

In a controlled shutdown the broker waits until the controller has moved its leaderships away, at most 5 minutes. It
does not wait for a controller that does not respond: it stops after `_PATIENCE_MS` without any response, or after
`_PATIENCE_ALONE_MS` where no other broker could lead its partitions.

A broker that cannot report a failed directory to the controller within `log.dir.failure.timeout.ms` stops the node as
well: it would remain the leader of partitions that it cannot serve.

A machine without sockets or clocks: it sends through an injected channel and waits on injected timers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage
from kalda.protocol.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from kalda.protocol.notation import Request

log = logging.getLogger("kalda.lifecycle")
quorum_log = logging.getLogger("kalda.quorum")

_CATCH_UP_RETRY_MS = 10
"""Between heartbeats, while the broker waits until it has caught up or is unfenced."""
_SHUTDOWN_RETRY_MS = 50
"""At most, between heartbeats, while the controller moves leaderships away."""
_FAILURE_RETRY_MS = 1_000
"""At most, before a request that failed is sent again."""
_SHUTDOWN_TIMEOUT_MS = 5 * 60_000
"""How long a controlled shutdown takes at most; Kafka's limit."""
_PATIENCE_MS = 5_000
"""How long a controlled shutdown waits for the next response of a controller: an election takes a second or two."""
_PATIENCE_ALONE_MS = 1_000
"""The same where every other broker is fenced, shutting down or unregistered. A shutdown of a whole cluster ends like
this, often without a majority of the quorum."""


class BrokerState(IntEnum):
    """Kafka's states, with the values of the metric BrokerState."""

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
        """The controller has moved all leaderships away; or there was nothing to move, or the broker has given up, or
        `close` was called."""


def _nothing_to_replay() -> None:
    return None


class BrokerLifecycle:
    """The broker's side of registration, heartbeats and controlled shutdown.

    Invariants: `state` only moves forward. From `start` until `SHUTTING_DOWN`, either a request is under way or a timer
    is set for the next one; never both.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        send: Callable[[Request], Pending[Any]],
        timers: Timers,
        image: Callable[[], MetadataImage],
        metadata_offset: Callable[[], int],
        on_fatal: Callable[[str], None],
        *,
        heartbeat_interval_ms: int,
        registration_timeout_ms: int,
        dir_failure_timeout_ms: int,
        replayed: Callable[[], int | None] = _nothing_to_replay,
    ) -> None:
        """`image()` is the newest image; `metadata_offset()` is the end of what this broker has applied. `on_fatal` is
        called with the reason why the node must stop. `replayed()` is how far the replay of the metadata log is, as a
        number that grows; None when it is complete."""
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = -1
        """Of the last registration; -1 before the first."""
        self.milestones = Milestones()
        self._identity = identity
        self._send = send
        self._timers = timers
        self._image = image
        self._metadata_offset = metadata_offset
        self._on_fatal = on_fatal
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._dir_failure_timeout_ms = dir_failure_timeout_ms
        self._replayed = replayed
        self._last_replayed: int | None = None
        """`replayed()` when the time for the registration last started."""
        self._registered = False
        """Whether the next request is a heartbeat. False again after `resend_registration`, and where this process was
        found to be registered with another epoch."""
        self._is_deregistered = False
        """Whether the last heartbeat was refused because the registration of this process has been removed."""
        self._shutdown_timer: Timer | None = None
        """For the end of a controlled shutdown; None outside of one, as `_patience_timer`."""
        self._patience_timer: Timer | None = None
        """Set anew with each response."""
        self._patience_ms = _PATIENCE_MS
        self._ready_to_unfence = False
        self._in_flight = False
        """Whether a request is under way."""
        self._send_at_once = False
        """Whether the next request must be sent as soon as the one under way is answered."""
        self._timer: Timer | None = None
        """For the next request."""
        self._registration_timer: Timer | None = None
        """For `initial.broker.registration.timeout.ms`; None before `start` and after the registration."""
        self._cordoned_dirs: list[Uuid] | None = None
        """Directories that take no new replicas; None while metadata.version does not support the field."""
        self._offline_dirs: list[Uuid] = []
        """Failed directories: every heartbeat names them all."""
        self._dirs_in_flight: list[Uuid] = []
        """The failed directories that the last heartbeat named."""
        self._unreported_dirs: dict[Uuid, Timer] = {}
        """Failed directories that no heartbeat has named that was answered, each with the timer that stops the node."""

    # -- events

    def start(self) -> None:
        """Register, and go on until `close`."""
        assert self.state is BrokerState.NOT_RUNNING, f"start in state {self.state.name}"
        self.state = BrokerState.STARTING
        self._last_replayed = self._replayed()
        self._wait_for_registration()
        self._send_next()

    def set_ready_to_unfence(self) -> None:
        """The logs are recovered and the partitions are open: heartbeats ask to be unfenced from now on."""
        self._ready_to_unfence = True
        self._send_next()

    def resend_registration(self) -> None:
        """Register again, with the directories that are online now."""
        self._registered = False
        self._send_next()

    def on_directory_failure(self, directory: Uuid) -> None:
        """Report a failed log directory to the controller."""
        if directory not in self._offline_dirs:
            self._offline_dirs.append(directory)
            if self.state is not BrokerState.SHUTTING_DOWN:
                self._unreported_dirs[directory] = self._timers.call_later_ms(
                    self._dir_failure_timeout_ms, self._dir_failure_timed_out
                )
        self._send_next()

    def set_cordoned_dirs(self, directories: list[Uuid] | None) -> None:
        """Report the log directories that take no new replicas; None where metadata.version does not support that."""
        if directories != self._cordoned_dirs:
            self._cordoned_dirs = directories
            self._send_next()

    def on_metadata_offset(self) -> None:
        """The broker has applied more metadata. While it is STARTING, it may have caught up, so a heartbeat is sent."""
        if self._registered and self.state is BrokerState.STARTING:
            self._send_next()

    def begin_controlled_shutdown(self) -> None:
        """Have the controller move leaderships away. A broker that was never unfenced leads nothing, and stops."""
        if self.state is not BrokerState.RUNNING or self._is_deregistered:
            self._shut_down()
            return
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        brokers = self._image().cluster.brokers.values()
        others = (each for each in brokers if each.id != self._identity.broker_id)
        can_be_relieved = any(not each.fenced and not each.in_controlled_shutdown for each in others)
        self._patience_ms = _PATIENCE_MS if can_be_relieved else _PATIENCE_ALONE_MS
        self._shutdown_timer = self._timers.call_later_ms(_SHUTDOWN_TIMEOUT_MS, self._shutdown_timed_out)
        self._restart_patience()
        self._send_next()

    def close(self) -> None:
        """Send nothing more."""
        self._shut_down()

    # -- requests and responses

    def _send_next(self) -> None:
        """Send the next request now, or as soon as the one under way is answered."""
        if self.state in (BrokerState.NOT_RUNNING, BrokerState.SHUTTING_DOWN):
            return
        if self._in_flight:
            self._send_at_once = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._in_flight = True
        if self._registered:
            self._send(self._heartbeat()).then(self._on_heartbeat)
        else:
            self._send(self._registration()).then(self._on_registration)

    def _schedule_next(self, delay_ms: int) -> None:
        """The request under way is answered: set the timer for the next one."""
        self._in_flight = False
        if self._send_at_once:
            self._send_at_once = False
            delay_ms = 0
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._timer = self._timers.call_later_ms(delay_ms, self._send_next)

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
        if self.state is BrokerState.SHUTTING_DOWN:
            return
        if failure is not None:
            log.warning("registration of broker %d failed: %s", self._identity.broker_id, failure)
            self._schedule_next(min(_FAILURE_RETRY_MS, self._heartbeat_interval_ms))
            return
        assert response is not None
        self.broker_epoch = response.broker_epoch
        self._registered = True
        self._is_deregistered = False
        if self._registration_timer is not None:
            self._registration_timer.cancel()
            self._registration_timer = None
        log.info("broker %d registered with epoch %d", self._identity.broker_id, self.broker_epoch)
        if not self.milestones.registered.done:
            self.milestones.registered.complete(None)
        self._schedule_next(0)

    def _wait_for_registration(self) -> None:
        self._registration_timer = self._timers.call_later_ms(
            self._registration_timeout_ms, self._registration_timed_out
        )

    def _registration_timed_out(self) -> None:
        before, self._last_replayed = self._last_replayed, self._replayed()
        if self._last_replayed != before:
            # The last change is from a number to None: the whole time starts once more when the replay is complete.
            log.info("broker %d is not registered yet, but still replays the metadata", self._identity.broker_id)
            self._wait_for_registration()
        elif self.state is not BrokerState.SHUTTING_DOWN:
            self._on_fatal("no registration with the controller quorum within initial.broker.registration.timeout.ms")

    def _dir_failure_timed_out(self) -> None:
        if self.state is not BrokerState.SHUTTING_DOWN:
            self._on_fatal("no controller accepted the report of a failed directory within log.dir.failure.timeout.ms")

    def _shutdown_timed_out(self) -> None:
        log.warning(
            "broker %d stops with leaderships: the controller has not moved them all within %d s",
            self._identity.broker_id,
            _SHUTDOWN_TIMEOUT_MS // 1000,
        )
        self._shut_down()

    def _restart_patience(self) -> None:
        if self._patience_timer is not None:
            self._patience_timer.cancel()
        self._patience_timer = self._timers.call_later_ms(self._patience_ms, self._patience_ended)

    def _patience_ended(self) -> None:
        log.warning(
            "broker %d stops without a handover of its leaderships: no controller has responded for %d ms",
            self._identity.broker_id,
            self._patience_ms,
        )
        self._shut_down()

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        self._dirs_in_flight = list(self._offline_dirs)
        return BrokerHeartbeatRequest(
            broker_id=self._identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._ready_to_unfence,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=self._dirs_in_flight,
            cordoned_log_dirs=self._cordoned_dirs,
        )

    def _on_heartbeat(self, response: BrokerHeartbeatResponse | None, error: ApiError | None) -> None:
        if self.state is BrokerState.SHUTTING_DOWN:
            return
        if response is not None and self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._restart_patience()
        failure = _failure(response, error)
        if failure is not None:
            if failure.code is ErrorCode.STALE_BROKER_EPOCH:
                self._on_stale_epoch()
            else:
                log.warning("heartbeat of broker %d failed: %s", self._identity.broker_id, failure)
            retry_ms = self._heartbeat_interval_ms
            self._schedule_next(retry_ms if self._is_deregistered else min(_FAILURE_RETRY_MS, retry_ms))
            return
        assert response is not None
        self._is_deregistered = False
        for directory in self._dirs_in_flight:
            if (timer := self._unreported_dirs.pop(directory, None)) is not None:
                timer.cancel()
        delay_ms = self._heartbeat_interval_ms
        if self.state is BrokerState.STARTING:
            if response.is_caught_up:
                log.info("broker %d has caught up with the metadata", self._identity.broker_id)
                self.state = BrokerState.RECOVERY
                self._schedule_next(delay_ms)
                self.milestones.caught_up.complete(None)
                return
            delay_ms = _CATCH_UP_RETRY_MS
        elif self.state is BrokerState.RECOVERY:
            if not response.is_fenced:
                log.info("broker %d is unfenced", self._identity.broker_id)
                self.state = BrokerState.RUNNING
                self._schedule_next(delay_ms)
                self.milestones.unfenced.complete(None)
                return
            if self._ready_to_unfence:
                delay_ms = _CATCH_UP_RETRY_MS
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            if response.should_shut_down:
                self._shut_down()
                return
            delay_ms = min(delay_ms, _SHUTDOWN_RETRY_MS)
        self._schedule_next(delay_ms)

    def _on_stale_epoch(self) -> None:
        """The controller has no registration of this broker with this epoch. The metadata has the reason, once it has
        been replayed beyond this registration."""
        identity, image = self._identity, self._image()
        if image.offset < self.broker_epoch:
            log.info("heartbeat of broker %d: its epoch %d is stale", identity.broker_id, self.broker_epoch)
            return
        registration = image.cluster.brokers.get(identity.broker_id)
        if registration is not None and registration.incarnation_id == identity.incarnation_id:
            if registration.epoch != self.broker_epoch:
                log.warning(
                    "broker %d has epoch %d, but is registered with epoch %d: it registers anew",
                    identity.broker_id,
                    self.broker_epoch,
                    registration.epoch,
                )
                self._registered = False
            return
        if not self._is_deregistered:
            log.warning(
                "broker %d %s; this process serves no partition any more. Restart it to register it again",
                identity.broker_id,
                "has been unregistered" if registration is None else "has been registered by another process",
            )
        self._is_deregistered = True
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
            self._shut_down()

    def _shut_down(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        for timer in (
            self._timer,
            self._registration_timer,
            self._shutdown_timer,
            self._patience_timer,
            *self._unreported_dirs.values(),
        ):
            if timer is not None:
                timer.cancel()
        if not self.milestones.may_shut_down.done:
            self.milestones.may_shut_down.complete(None)


def _failure(
    response: BrokerRegistrationResponse | BrokerHeartbeatResponse | None, error: ApiError | None
) -> ApiError | None:
    """The error of the request, or of its response; None where it succeeded."""
    if response is None or not response.error_code:
        return error
    return ApiError(ErrorCode(response.error_code))


_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 120_000
"""Kafka's. Most reasons to try again before that are changes of the metadata or of the active controller."""


class ControllerRegistrationManager:
    """The registration of this node's controller with the active controller (KIP-919), which may be this one.

    The metadata says which process is registered as each controller. As long as this process is not, it sends its
    registration: at the first image, when another node becomes the active controller, when the registration in the
    metadata is removed or replaced, when metadata.version comes to support registrations, and after each failure, later
    each time. Endpoints and supported features are those of the process from its start to its end, so the incarnation
    id in the metadata shows whether they are registered.

    Invariant: at most one request is under way, and while one is no timer is set.

    A machine, and a publisher of the loader: it sends through an injected channel and waits on injected timers.

    Registers one controller, and registers it anew where that is lost.
    """

    name = "ControllerRegistrationManager"

    def __init__(
        self, request: ControllerRegistrationRequest, send: Callable[[Request], Pending[Any]], timers: Timers
    ) -> None:
        """`request` is what is registered."""
        self._request = request
        self._send = send
        self._timers = timers
        self._image = EMPTY
        self._is_under_way = False
        """Whether a request is not answered."""
        self._failures = 0
        """Requests that failed since the last that succeeded, or since the active controller changed."""
        self._timer: Timer | None = None
        """For the next attempt after a failure; None while none is due."""
        self._closed = False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """Register, if this image shows that it is due."""
        self._image = image
        ours_changed = delta.cluster is not None and self._request.controller_id in delta.cluster.changed_controllers
        if ours_changed or delta.features is not None:
            self._register_if_due()

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """The failures were those of the former active controller: try at once with the new one."""
        if leader_id is not None:
            self._failures = 0
            self._register_if_due()

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        self._stop_timer()

    @property
    def _is_due(self) -> bool:
        version = self._image.features.metadata_version
        if self._closed or version is None or not version.is_controller_registration_supported:
            return False
        registered = self._image.cluster.controllers.get(self._request.controller_id)
        return registered is None or registered.incarnation_id != self._request.incarnation_id

    def _register_if_due(self) -> None:
        if self._is_under_way or not self._is_due:
            return
        self._stop_timer()
        self._is_under_way = True
        self._send(self._request).then(self._on_response)

    def _on_response(self, response: ControllerRegistrationResponse | None, error: ApiError | None) -> None:
        self._is_under_way = False
        if self._closed:
            return
        if response is not None and response.error_code:
            error = ApiError(ErrorCode(response.error_code), response.error_message or "")
        if error is None:
            quorum_log.info("controller %d is registered", self._request.controller_id)
            self._failures = 0
            return  # the metadata shows it soon, or another registration, which is checked then
        delay_ms = min(_FIRST_BACKOFF_MS << min(self._failures, 20), _MAX_BACKOFF_MS)
        self._failures += 1
        quorum_log.warning(
            "registration of controller %d failed: %s; trying again in %d ms",
            self._request.controller_id,
            error,
            delay_ms,
        )
        self._timer = self._timers.call_later_ms(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._register_if_due()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
