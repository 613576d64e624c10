"""Delegation tokens: CreateDelegationToken (38), RenewDelegationToken (39) and ExpireDelegationToken (40), which the
active controller answers, and DescribeDelegationToken (41), which a broker answers from its own metadata.

A broker refuses the requests of clients that have authenticated with a token, or not at all, before it forwards them:
the controller does not see their connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.forwarding import Forwarding
from kalda.broker.handlers.shared import error_on_top
from kalda.broker.module import Module
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.controller.credentials import created
from kalda.metadata.delegation_tokens import DelegationToken, token_hmac
from kalda.protocol.access import ANONYMOUS, DESCRIBE_TOKEN, DESCRIBE_TOKENS
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kalda.protocol.notation import Request, Response

_NO_TIME = -1
_FIRST_WITH_REQUESTER = 3
_STEP_TOKENS = 500


class TokenHandlers(Module):
    """A broker's handlers."""

    def __init__(
        self, forwarding: Forwarding, secret: str | None, tokens: Callable[[], Iterable[DelegationToken]]
    ) -> None:
        """`secret` is `delegation.token.secret.key`; `tokens()` are those of the newest image."""
        self._forwarding = forwarding
        self._secret = secret
        self._tokens = tokens

    def rows(self) -> list[Row]:
        """All four APIs."""
        at_controller, forward = Authorization.AT_CONTROLLER, self._forward
        return [
            Row(ApiKey.CREATE_DELEGATION_TOKEN, forward, create_token_failed, at_controller, forwarded=True),
            Row(ApiKey.RENEW_DELEGATION_TOKEN, forward, error_on_top, at_controller, forwarded=True),
            Row(ApiKey.EXPIRE_DELEGATION_TOKEN, forward, error_on_top, at_controller, forwarded=True),
            Row(
                ApiKey.DESCRIBE_DELEGATION_TOKEN,
                self._describe,
                error_on_top,
                Authorization.PER_ITEM,
                has_large_answer=True,
            ),
        ]

    def _forward(self, context: RequestContext, request: Request) -> Response | Pending[Encoded]:
        if not context.may_request_tokens:
            return _not_allowed(context, request)
        return self._forwarding.forward(context, request)

    def _describe(
        self, context: RequestContext, request: DescribeDelegationTokenRequest
    ) -> Steps[DescribeDelegationTokenResponse]:
        """The tokens of some owners, or of all, that the caller may see. There may be very many: in steps."""
        if not context.may_request_tokens:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        if self._secret is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        owners: set[str] | None = None
        if request.owners is not None:
            owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
        response = DescribeDelegationTokenResponse()
        for count, token in enumerate(self._tokens(), 1):
            if count % _STEP_TOKENS == 0:
                yield
            if _is_wanted(token, owners) and _may_see(context, token):
                response.tokens.append(_described(token, self._secret, context.api_version))
        return response


def _not_allowed(context: RequestContext, request: Request) -> Response:
    """The refusal of a request over such a connection."""
    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if isinstance(request, CreateDelegationTokenRequest):
        owner = context.principal
        if request.owner_principal_name:
            owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
        return created(owner, context.principal, code, context.api_version)
    if isinstance(request, RenewDelegationTokenRequest):
        return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=_NO_TIME)


def _is_wanted(token: DelegationToken, owners: set[str] | None) -> bool:
    """Whether the token `concerns` one of the owners, without a look at each of them."""
    if owners is None or token.owner in owners or token.requester in owners:
        return True
    return not owners.isdisjoint(token.renewers)


def _may_see(context: RequestContext, token: DelegationToken) -> bool:
    return (
        token.concerns(context.principal)
        or DESCRIBE_TOKEN.holds(context, token.token_id)
        or DESCRIBE_TOKENS.holds(context, token.owner)
    )


def _described(token: DelegationToken, secret: str, version: int) -> DescribedDelegationToken:
    owner_type, _, owner_name = token.owner.partition(":")
    requester_type, _, requester_name = token.requester.partition(":")
    renewers = []
    for renewer in token.renewers:
        renewer_type, _, renewer_name = renewer.partition(":")
        renewers.append(DescribedDelegationTokenRenewer(principal_type=renewer_type, principal_name=renewer_name))
    described = DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=token_hmac(secret, token.token_id),
        renewers=renewers,
    )
    if version >= _FIRST_WITH_REQUESTER:
        described.token_requester_principal_type = requester_type
        described.token_requester_principal_name = requester_name
    return described


# How each API reports that the whole request failed.


def create_token_failed(
    request: CreateDelegationTokenRequest, version: int, error: ApiError
) -> CreateDelegationTokenResponse:
    """The error on top, without an owner."""
    return created(ANONYMOUS, ANONYMOUS, error.code, version)
