"""The quorum's requests on the network, and the controller's probes of brokers.

The machine has at most one request under way to each destination, so there is no queue to bound. A request that meets
an error fails, whatever the error is: the machine sends nothing more to a destination whose request never ends. When to
try again is the machine's decision. Where a connection broke, the address is probed at once: if the process of the
leader is dead, the quorum need not wait for the timeout. The log names an address that does not answer once, and once
more when it answers again. That is a warning, except where the address refuses connections: each orderly stop of a
controller looks like this to the others.
"""

from __future__ import annotations

import logging
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.network.client.addresses import all_refuse
from kalda.network.client.channel import Address, Channel
from kalda.network.client.client import Reach, RpcPolicy
from kalda.protocol.framing import ConnectionRefused
from kalda.protocol.notation import Request
from kalda.raft.voters import Destination

log = logging.getLogger("kalda.quorum")


class RaftChannel(Channel):
    """`send` is the driver's `SendRpc`."""

    def __init__(self, policy: RpcPolicy, reach: Reach) -> None:
        super().__init__(policy, reach)
        self._unanswered: set[Address] = set()
        """Addresses that did not answer the last request. Each was logged when it was added."""

    def send(self, destination: Destination, request: Request, timeout_ms: int) -> Pending[Any]:
        """The response. Fails with an `ApiError`, among others where no response came within the timeout; that is
        `ConnectionRefused` where the address refuses connections."""
        return self.begin(self._exchange, (destination.host, destination.port), request, timeout_ms)

    def probe(self, addresses: tuple[Address, ...]) -> Pending[bool]:
        """Whether each of a broker's addresses refuses connections: then no process listens there."""
        assert self._reach.is_refused is not None, "the controller probes where dead processes are to be detected"
        return self.begin(all_refuse, addresses, self._reach.is_refused)

    def drop(self, address: Address) -> None:
        """Close the connection to an address."""
        super().drop(address)
        self._unanswered.discard(address)

    async def _exchange(self, address: Address, request: Request, timeout_ms: int) -> Any:
        try:
            response = await self.client(address).request(request, timeout_ms=timeout_ms)
        except ConnectionRefused:
            self._note_silence(address, "it refuses connections, so no process runs there", logging.INFO)
            raise
        except ApiError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:  # which an older controller may answer
                self._note_silence(address, error.message or error.code.name, logging.WARNING)
            raise
        if getattr(response, "error_code", 0) == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._note_silence(address, "it is of another cluster [INCONSISTENT_CLUSTER_ID]", logging.WARNING)
        elif address in self._unanswered:
            self._unanswered.discard(address)
            log.info("the controller at %s:%d answers now", *address)
        return response

    def _note_silence(self, address: Address, why: str, level: int) -> None:
        if address not in self._unanswered and not self.is_closed:
            self._unanswered.add(address)
            log.log(level, "no answer from the controller at %s:%d: %s", *address, why)
