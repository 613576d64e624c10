"""The registration of this node's controller with the active controller (KIP-919), which may be this one.

The metadata says which process is registered as each controller. As long as this process is not, it sends its
registration: at the first image, when another node becomes the active controller, when the registration in the metadata
is removed or replaced, when metadata.version comes to support registrations, and after each failure, later each time.
Endpoints and supported features are those of the process from its start to its end, so the incarnation id in the
metadata shows whether they are registered.

Invariant: at most one request is under way, and while one is no timer is set.

A machine, and a publisher of the loader: it sends through an injected channel and waits on injected timers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage
from kalda.protocol.messages.brokers import ControllerRegistrationRequest, ControllerRegistrationResponse
from kalda.protocol.notation import Request

log = logging.getLogger("kalda.quorum")

_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 120_000
"""Kafka's. Most reasons to try again before that are changes of the metadata or of the active controller."""


class ControllerRegistrationManager:
    """Registers one controller, and registers it anew where that is lost."""

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
            log.info("controller %d is registered", self._request.controller_id)
            self._failures = 0
            return  # the metadata shows it soon, or another registration, which is checked then
        delay_ms = min(_FIRST_BACKOFF_MS << min(self._failures, 20), _MAX_BACKOFF_MS)
        self._failures += 1
        log.warning(
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
