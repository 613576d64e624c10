"""A connection without a network: it records what the pipeline and its handlers do to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.base.scheduling import Pending
from kalda.network.server.connection import ANONYMOUS
from kalda.protocol.apis import API, response_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_response_header, encode_request
from kalda.protocol.notation import Request, Response

CORRELATION_ID = 77


class PaperConnection:
    """Sends requests to a pipeline, and decodes its answers."""

    def __init__(self, principal: str = ANONYMOUS, listener_name: str = "PLAINTEXT") -> None:
        self.listener_name = listener_name
        self.peer_host = "10.1.2.3"
        self.principal = principal
        self.token_authenticated = False
        self.security_protocol = "PLAINTEXT"
        self.earlier: Pending[None] | None = None
        """Of the requests before; None where they are answered."""
        self.id = 1
        self.client_software_name = ""
        self.client_software_version = ""
        self.mutes: list[int] = []
        """The milliseconds of each mute."""
        self.is_closed = False
        self.is_answered_alone = False
        self.has_room = True
        """For large answers."""

    def mute(self, duration_ms: int) -> None:
        self.mutes.append(duration_ms)

    def close(self) -> None:
        self.is_closed = True

    def answer_alone(self) -> None:
        self.is_answered_alone = True

    def after_earlier(self) -> Pending[None] | None:
        return self.earlier

    def begin_answer(self, begin: Callable[[], Any]) -> Any:
        return begin() if self.has_room else Pending()

    def send_to_follower(self) -> None:
        pass

    def frame(self, request: Request, version: int) -> memoryview:
        """A request's bytes as the network has them."""
        return memoryview(bytearray(b"".join(encode_request(request, version, CORRELATION_ID, "client"))))


def read_answer(answer: Any, request: Request, version: int) -> Any:
    """The response in an answer that is there, or None where there is none."""
    if isinstance(answer, Pending):
        assert answer.error is None, answer.error
        assert answer.done
        answer = answer.value
    if not answer:
        return None
    frame = memoryview(b"".join(answer))
    api = API[request.API_KEY]
    correlation_id, body_at = decode_response_header(api, version, frame)
    assert correlation_id == CORRELATION_ID
    response: Response = decode(response_class(api.key), frame, version, body_at)
    return response
