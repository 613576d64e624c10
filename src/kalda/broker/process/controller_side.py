"""The half of a node with the controller role: what its listeners answer, and its registration."""

from __future__ import annotations

from functools import partial

from kalda.broker.channels.lifecycle import ControllerRegistrationManager
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.controller import ControllerHandlers
from kalda.broker.process.closing import Ending, Part
from kalda.broker.process.listeners import NodeListeners
from kalda.broker.process.node_parts import NodeParts
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.requests.api_versions import Features
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.features import supported_ranges
from kalda.protocol.messages.brokers import (
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    ControllerRegistrationRequestListener,
)


class ControllerSide:
    """A controller's listeners, and its registration with the active controller."""

    def __init__(
        self,
        parts: NodeParts,
        listeners: NodeListeners,
        quorum: QuorumSide,
        controller: QuorumController,
        channel: ControllerChannel,
    ) -> None:
        """`controller` is that of `quorum`."""
        self._parts = parts
        self._listeners = listeners
        self._quorum = quorum
        config = parts.config
        configs = ConfigHandlers(config.node_id, config, quorum.loader)
        self.handlers = ControllerHandlers(
            quorum.raft, controller, quorum.loader, parts.host.clock, parts.cluster_id, configs, quorum.arm
        )
        self.registration = ControllerRegistrationManager(self._request(), channel.send, parts.timers)
        parts.closing.add(Part.CONTROLLER, self._close)
        parts.closing.add(Part.REGISTRATION, lambda _: self.registration.close())

    def start(self) -> None:
        """Answer; on listeners that are not early, as soon as the authorizer has its entries."""
        parts, config = self._parts, self._parts.config
        pipeline = self.handlers.pipeline(
            self._features,
            parts.background,
            unstable_versions=config["unstable.api.versions.enable"],
            authorizer=parts.authorizer,
            throttle=parts.quotas.throttle,
        )
        parts.quotas.add_pipeline(pipeline)
        parts.watchdog.watch(pipeline)
        on_frame = parts.on_frame(pipeline)
        for name in config.controller_listener_names:
            self._listeners.server.listeners[name].on_close.append(self.handlers.on_close)
            open_gate = partial(self._listeners.open, name, on_frame)
            if parts.node_authorizer is None or name in config.early_start_listeners:
                open_gate()
            else:
                parts.node_authorizer.when_loaded(open_gate)

    def _features(self) -> Features:
        """What ApiVersions announces. As in Apache Kafka, the ranges of controllers follow the key of unstable APIs."""
        return self._quorum.features(supported_ranges(unstable=self._parts.config["unstable.api.versions.enable"]))

    def _request(self) -> ControllerRegistrationRequest:
        parts = self._parts
        return ControllerRegistrationRequest(
            controller_id=parts.config.node_id,
            incarnation_id=parts.incarnation_id,
            listeners=[
                ControllerRegistrationRequestListener(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in self._listeners.controller_endpoints
            ],
            features=[
                ControllerRegistrationRequestFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in parts.supported.items()
            ],
        )

    def _close(self, _: Ending) -> None:
        self._quorum.stop_probing()
        for name in self._parts.config.controller_listener_names:
            self._listeners.server.listeners[name].on_close.remove(self.handlers.on_close)
