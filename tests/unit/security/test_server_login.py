"""A server's part of a login: each state, what it refuses, and arbitrary bytes in every state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.errors import ApiError, ErrorCode
from kalda.protocol.apis import ApiKey, request_class, response_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import encode_request
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest
from kalda.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from kalda.protocol.notation import Request
from kalda.security.mechanisms import (
    CheckPassword,
    CheckToken,
    ClientLogin,
    FindScram,
    LoginOutcome,
    PlainClient,
    PlainServer,
    SaslFailed,
)
from kalda.security.oauthbearer import (
    ClaimRules,
    InvalidToken,
    OAuthBearerClient,
    OAuthBearerServer,
    claims_of_options,
    unsecured_claims,
    unsecured_token,
    validate,
)
from kalda.security.scram import MECHANISMS, ScramClient, ScramSecret, ScramServer, credential_of
from kalda.security.server_login import (
    Authenticated,
    Failed,
    LoginAnswer,
    LoginQuestion,
    LoginRules,
    PassOn,
    Reaction,
    ServerLogin,
    State,
)

NOW_MS = 1_700_000_000_000
SCRAM = "SCRAM-SHA-256"


def rules(max_reauth_ms: int = 0, principal: str = "") -> LoginRules:
    return LoginRules(
        {"PLAIN": PlainServer, SCRAM: lambda: ScramServer(SCRAM, "srv"), "OAUTHBEARER": OAuthBearerServer},
        lambda mechanism, outcome: principal or f"User:{outcome.authorization_id}",
        lambda mechanism: max_reauth_ms,
        lambda: NOW_MS,
    )


def frame_of(request: Request, version: int) -> bytes:
    return b"".join(encode_request(request, version, 7, "me"))


def handshake(mechanism: str, version: int = 1) -> bytes:
    return frame_of(SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(token: bytes, version: int = 2) -> bytes:
    return frame_of(SaslAuthenticateRequest(auth_bytes=token), version)


def answered(login: ServerLogin, reaction: Reaction) -> LoginAnswer:
    """With the answers of a node whose only user is alice, with the password secret."""
    while isinstance(reaction, LoginQuestion):
        question, found = reaction.question, None
        if isinstance(question, CheckPassword):
            found = (question.user, question.password) == ("alice", "secret")
        elif isinstance(question, FindScram):
            credential = credential_of(MECHANISMS[SCRAM], "secret", b"salt", 4096)
            found = ScramSecret(credential) if question.user == "alice" else None
        else:
            assert isinstance(question, CheckToken)
            try:
                found = validate(unsecured_claims(question.token), ClaimRules(), NOW_MS / 1000)
            except InvalidToken as error:
                found = error
        reaction = reaction.then(found)
    assert isinstance(reaction, LoginAnswer)
    return reaction


def response_of(key: ApiKey, answer: LoginAnswer, version: int) -> Any:
    frame = b"".join(answer.buffers)
    return decode(response_class(key), frame, version, 5 if key is ApiKey.SASL_AUTHENTICATE and version >= 2 else 4)


def run(client: ClientLogin, login: ServerLogin) -> LoginAnswer:
    """A whole login by the client's machine; returns the last answer of the server."""
    request: Request | None = client.first()
    answer = LoginAnswer([])
    while request is not None:
        version = 1 if request.API_KEY == ApiKey.SASL_HANDSHAKE else 2
        answer = answered(login, login.on_frame(frame_of(request, version)))
        request = client.on_response(response_of(ApiKey(request.API_KEY), answer, version))
    return answer


def plain(password: str = "secret", user: str = "alice") -> ClientLogin:
    return ClientLogin("PLAIN", PlainClient(user, password))


def bearer(**claims: object) -> ClientLogin:
    token = unsecured_token({"sub": "alice", "exp": NOW_MS / 1000 + 60, **claims})
    return ClientLogin("OAUTHBEARER", OAuthBearerClient(token, {"traceId": "1"}))


@pytest.mark.parametrize(
    "client",
    [plain(), ClientLogin(SCRAM, ScramClient(SCRAM, "alice", "secret", "cli")), bearer()],
    ids=["plain", "scram", "oauth"],
)
def test_a_login_of_each_mechanism(client: ClientLogin) -> None:
    login = ServerLogin(rules())
    done = run(client, login).end
    assert isinstance(done, Authenticated)
    assert (done.principal, login.state) == ("User:alice", State.COMPLETE)


@pytest.mark.parametrize(
    ("client", "message", "why"),
    [
        (plain("wrong"), "Authentication failed: Invalid username or password", "Invalid username or password"),
        (plain("secret", "bob"), "Authentication failed: Invalid username or password", "Invalid username or password"),
        (
            ClientLogin(SCRAM, ScramClient(SCRAM, "alice", "wrong", "cli")),
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {SCRAM}",
            "Invalid client credentials",
        ),
        (
            ClientLogin(SCRAM, ScramClient(SCRAM, "bob", "wrong", "cli")),
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {SCRAM}",
            "Invalid user credentials",
        ),
        (bearer(exp=1), '{"status":"invalid_token"}', '{"status":"invalid_token"}'),
    ],
)
def test_a_refused_login(client: ClientLogin, message: str, why: str) -> None:
    login = ServerLogin(rules())
    with pytest.raises(ApiError) as raised:
        run(client, login)
    assert raised.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raised.value.message == message
    assert login.state is State.FAILED
    assert "wrong" not in why


def test_an_unknown_mechanism_is_answered_with_those_that_are_enabled() -> None:
    login = ServerLogin(rules())
    answer = answered(login, login.on_frame(handshake("GSSAPI")))
    response = response_of(ApiKey.SASL_HANDSHAKE, answer, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ["PLAIN", SCRAM, "OAUTHBEARER"]
    assert answer.end == Failed("Unsupported SASL mechanism GSSAPI")


def test_bare_tokens_after_a_handshake_of_version_0() -> None:
    login = ServerLogin(rules())
    answered(login, login.on_frame(handshake("PLAIN", 0)))
    done = answered(login, login.on_frame(b"\0alice\0secret"))
    assert done.buffers == [b""]
    assert isinstance(done.end, Authenticated)
    refused = ServerLogin(rules())
    answered(refused, refused.on_frame(handshake("PLAIN", 0)))
    failed = answered(refused, refused.on_frame(b"\0alice\0no"))
    assert failed == LoginAnswer([], Failed("Authentication failed: Invalid username or password"))


@pytest.mark.parametrize(("version", "buffers"), [(0, 0), (1, 1)])
def test_a_mechanism_without_a_last_token(version: int, buffers: int) -> None:
    """As GSSAPI: a client of bare tokens reads nothing after its last one."""

    class Mechanism:
        def on_token(self, token: bytes) -> LoginOutcome:
            return LoginOutcome("alice", None)

    login = ServerLogin(rules()._replace(mechanisms={"GSSAPI": Mechanism}))
    login.on_frame(handshake("GSSAPI", version))
    done = answered(login, login.on_frame(authenticate(b"x") if version else b"x"))
    assert isinstance(done.end, Authenticated)
    assert len(done.buffers) == buffers
    if version:
        assert response_of(ApiKey.SASL_AUTHENTICATE, done, 2).auth_bytes == b""


def test_versions_may_be_listed_before_the_handshake_and_not_after_it() -> None:
    login = ServerLogin(rules())
    versions = frame_of(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    assert login.on_frame(versions) == PassOn()
    login.on_frame(handshake("PLAIN"))
    answer = answered(login, login.on_frame(versions))
    assert answer.end == Failed("Unexpected Kafka request of type API_VERSIONS during SASL authentication.")
    assert response_of(ApiKey.API_VERSIONS, answer, 3).error_code == ErrorCode.ILLEGAL_SASL_STATE
    twice = ServerLogin(rules())
    twice.on_frame(handshake("PLAIN"))
    answer = answered(twice, twice.on_frame(handshake("PLAIN")))
    assert response_of(ApiKey.SASL_HANDSHAKE, answer, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_versions_are_listed_once() -> None:
    """A version that is not supported is not counted: the client tries a lower one (KIP-511)."""
    versions = frame_of(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    later = versions[:2] + (99).to_bytes(2, "big") + versions[4:]
    login = ServerLogin(rules())
    assert [login.on_frame(frame) for frame in (later, later, versions)] == [PassOn()] * 3
    assert answered(login, login.on_frame(versions)).end == Failed(
        "Unexpected Kafka request of type API_VERSIONS during SASL handshake."
    )
    endless = ServerLogin(rules())
    reactions = [endless.on_frame(later) for _ in range(6)]
    assert reactions[:5] == [PassOn()] * 5
    assert isinstance(reactions[5], LoginAnswer)


def test_other_requests_are_refused_in_each_state() -> None:
    metadata = frame_of(MetadataRequest(topics=None), 1)
    fresh, begun = ServerLogin(rules()), ServerLogin(rules())
    begun.on_frame(handshake("PLAIN"))
    for login, state in ((fresh, "handshake"), (begun, "authentication")):
        end = answered(login, login.on_frame(metadata)).end
        assert end == Failed(f"Unexpected Kafka request of type METADATA during SASL {state}.")
        assert isinstance(answered(login, login.on_frame(metadata)).end, Failed)
    token_first = ServerLogin(rules())
    assert isinstance(answered(token_first, token_first.on_frame(authenticate(b"\0alice\0secret"))).end, Failed)


def test_a_session_lives_as_long_as_the_shorter_of_token_and_limit() -> None:
    for limit_ms, expires_s, lifetime_ms in ((0, 60, 60_000), (5_000, 60, 5_000), (90_000, 60, 60_000)):
        client = bearer(exp=NOW_MS / 1000 + expires_s)
        done = run(client, ServerLogin(rules(limit_ms))).end
        assert isinstance(done, Authenticated)
        assert done.session_lifetime_ms == client.session_lifetime_ms == lifetime_ms
    client = plain()
    run(client, ServerLogin(rules(5_000)))
    assert client.session_lifetime_ms == 5_000


def test_a_renewal_changes_neither_principal_nor_mechanism() -> None:
    before = run(plain(), ServerLogin(rules())).end
    assert isinstance(before, Authenticated)
    assert isinstance(run(plain(), ServerLogin(rules(), before)).end, Authenticated)
    with pytest.raises(ApiError, match=r"principals during re-authentication from User\.alice: User\.eve"):
        run(plain(), ServerLogin(rules(principal="User:eve"), before))
    other = ServerLogin(rules(), before)
    answer = answered(other, other.on_frame(handshake(SCRAM)))
    assert response_of(ApiKey.SASL_HANDSHAKE, answer, 1).error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


def test_a_user_without_a_principal_is_refused() -> None:
    def none(mechanism: str, outcome: LoginOutcome) -> str:
        raise ValueError("no rule")

    with pytest.raises(ApiError, match="invalid credentials with SASL mechanism PLAIN"):
        run(plain(), ServerLogin(rules()._replace(principal_of=none)))


# -- OAuth tokens


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": ""}, "the claim sub is missing"),
        ({"sub": 5}, "the claim sub is missing"),
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "the claim exp is missing"),
        ({"exp": "soon"}, "not a number"),
        ({"exp": True}, "not a number"),
        ({"iat": NOW_MS / 1000 + 600}, "issued in the future"),
        ({"nbf": NOW_MS / 1000 + 600}, "not valid yet"),
        ({"iss": "other"}, "iss is not us"),
        ({"aud": ["x", 5]}, "aud names none of kalda"),
        ({"scope": "read"}, "the scope lacks write"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, object], why: str) -> None:
    strict = ClaimRules(expected_issuer="us", expected_audience=("kalda",), required_scope=("write",))
    good = {"sub": "a", "exp": NOW_MS / 1000 + 60, "iss": "us", "aud": "kalda", "scope": ["write", "read"]}
    assert validate(good, strict, NOW_MS / 1000).principal_name == "a"
    with pytest.raises(InvalidToken, match=why):
        validate({**good, **claims}, strict, NOW_MS / 1000)


def test_a_token_with_a_signature_is_not_taken_for_one_without() -> None:
    token = unsecured_token({"sub": "a"})
    assert unsecured_claims(token) == {"sub": "a"}
    for bad in (token + "sig", "a.b", "..", "e30.e30.", "!.!.!", token.replace("eyJ", "fyJ", 1)):
        with pytest.raises(InvalidToken):
            unsecured_claims(bad)


def test_claims_of_a_login_line() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "alice",
        "unsecuredLoginListClaim_scope": "|a|b",
        "unsecuredLoginNumberClaim_n": "2",
        "unsecuredLoginLifetimeSeconds": "10",
    }
    claims = claims_of_options(options, 100.0)
    assert claims == {"sub": "alice", "scope": ["a", "b"], "n": 2.0, "iat": 100.0, "exp": 110.0}
    assert claims_of_options({"clientId": "x"}, 0) is None


# -- arbitrary bytes


@given(
    st.sampled_from(["", "PLAIN", SCRAM, "OAUTHBEARER"]),
    st.integers(0, 1),
    st.lists(st.binary(max_size=80), max_size=4),
)
def test_arbitrary_bytes_never_authenticate_nor_raise(mechanism: str, version: int, tokens: list[bytes]) -> None:
    """In each state: before the handshake, as bare tokens, as frames, and inside SaslAuthenticate."""
    for wrap in (False, True):
        login = ServerLogin(rules())
        if mechanism:
            answered(login, login.on_frame(handshake(mechanism, version)))
        for token in tokens:
            reaction = login.on_frame(authenticate(token) if wrap and version == 1 else token)
            if isinstance(reaction, PassOn):
                continue
            end = answered(login, reaction).end
            assert not isinstance(end, Authenticated)
            if isinstance(end, Failed):
                assert "\n" not in end.why


@given(st.binary(max_size=60), st.integers(0, 40))
def test_a_damaged_scram_message_never_authenticates(noise: bytes, at: int) -> None:
    login = ServerLogin(rules())
    answered(login, login.on_frame(handshake(SCRAM)))
    client = ScramClient(SCRAM, "alice", "wrong", "cli")
    first = response_of(ApiKey.SASL_AUTHENTICATE, answered(login, login.on_frame(authenticate(client.first()))), 2)
    proof = client.on_challenge(first.auth_bytes) or b""
    end = answered(login, login.on_frame(authenticate(proof[:at] + noise + proof[at + len(noise) :]))).end
    assert isinstance(end, Failed)


def test_exchanges_are_bounded() -> None:
    class Endless:
        def on_token(self, token: bytes) -> bytes:
            return b"more"

    login = ServerLogin(rules()._replace(mechanisms={"X": Endless}))
    login.on_frame(handshake("X"))
    ends = [answered(login, login.on_frame(authenticate(b"t"))).end for _ in range(11)]
    assert ends[:10] == [None] * 10
    assert ends[10] == Failed("more than 10 SASL tokens")


def test_values_that_hold_secrets_do_not_show_them() -> None:
    shown = repr([CheckPassword("alice", "hush"), CheckToken("hush", ()), SaslFailed("no")])
    assert "hush" not in shown
    assert request_class(ApiKey.SASL_HANDSHAKE) is SaslHandshakeRequest
