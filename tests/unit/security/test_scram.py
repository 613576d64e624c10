"""SCRAM against the vectors of RFC 5802's successors, against itself, and what each side refuses."""

from __future__ import annotations

import base64

import pytest

from kalda.security.mechanisms import FindScram, LoginOutcome, Lookup, SaslFailed
from kalda.security.scram import MECHANISMS, ScramClient, ScramSecret, ScramServer, credential_of

SHA_256 = MECHANISMS["SCRAM-SHA-256"]


def secret(password: str = "pencil", iterations: int = 4096) -> ScramSecret:
    return ScramSecret(credential_of(SHA_256, password, b"some salt", iterations))


def challenge(server: ScramServer, token: bytes, found: ScramSecret | None) -> bytes:
    lookup = server.on_token(token)
    assert isinstance(lookup, Lookup)
    answer = lookup.then(found)
    assert isinstance(answer, bytes)
    return answer


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    server = ScramServer("SCRAM-SHA-256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = challenge(server, client.first(), ScramSecret(credential_of(SHA_256, "pencil", salt, 4096)))
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.on_challenge(first)
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    done = server.on_token(proof)
    assert isinstance(done, LoginOutcome)
    assert done.token == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.on_challenge(done.token) is None


@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "ünïcode", "x" * 200])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_both_sides_agree(mechanism: str, user: str) -> None:
    server, client = ScramServer(mechanism, "srv"), ScramClient(mechanism, user, "päss,=", "cli")
    lookup = server.on_token(client.first())
    assert isinstance(lookup, Lookup)
    assert lookup.question == FindScram(mechanism, user, False)
    first = lookup.then(ScramSecret(credential_of(MECHANISMS[mechanism], "päss,=", b"s", 4096)))
    assert isinstance(first, bytes)
    done = server.on_token(client.on_challenge(first) or b"")
    assert isinstance(done, LoginOutcome)
    assert done.authorization_id == user
    assert client.on_challenge(done.token) is None


def test_a_delegation_token_logs_its_owner_in() -> None:
    server, client = ScramServer("SCRAM-SHA-256", "srv"), ScramClient("SCRAM-SHA-256", "id-1", "hmac", "cli", True)
    lookup = server.on_token(client.first())
    assert isinstance(lookup, Lookup)
    assert lookup.question == FindScram("SCRAM-SHA-256", "id-1", True)
    first = lookup.then(ScramSecret(credential_of(SHA_256, "hmac", b"s", 4096), "alice", 77))
    assert isinstance(first, bytes)
    done = server.on_token(client.on_challenge(first) or b"")
    assert isinstance(done, LoginOutcome)
    assert (done.authorization_id, done.expires_at_ms, done.is_by_token) == ("alice", 77, True)


def test_the_whole_nonce_is_compared() -> None:
    """CVE-2024-56128: the end of the nonce alone must not do."""
    server, client = ScramServer("SCRAM-SHA-256", "srv"), ScramClient("SCRAM-SHA-256", "alice", "pencil", "cli")
    proof = client.on_challenge(challenge(server, client.first(), secret())) or b""
    with pytest.raises(SaslFailed, match="Invalid client nonce in the final client message"):
        server.on_token(proof.replace(b"r=clisrv", b"r=xxxsrv"))


@pytest.mark.parametrize(
    ("found", "password", "why"),
    [
        (secret("other"), "pencil", "Invalid client credentials"),
        (None, "pencil", "Invalid user credentials"),
        (secret(iterations=100), "pencil", "less than the minimum"),
    ],
)
def test_what_a_server_refuses(found: ScramSecret | None, password: str, why: str) -> None:
    server, client = ScramServer("SCRAM-SHA-256", "srv"), ScramClient("SCRAM-SHA-256", "alice", password, "cli")
    with pytest.raises(SaslFailed, match=why) as raised:
        server.on_token(client.on_challenge(challenge(server, client.first(), found)) or b"")
    assert not raised.value.is_for_client


def test_an_authorization_id_of_another_user_is_refused() -> None:
    server = ScramServer("SCRAM-SHA-256", "srv")
    with pytest.raises(SaslFailed, match="different from username"):
        challenge(server, b"n,a=root,n=alice,r=cli", secret())


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,",
        b"y,,n=a,r=b",
        b"p=tls-unique,,n=a,r=b",
        b"n,,n=,r=b",
        b"n,,n=a,r=",
        b"n,,n=a=b,r=c",
        b"\xff\xfe",
        b"n,,r=b",
    ],
)
def test_malformed_first_messages(token: bytes) -> None:
    with pytest.raises(SaslFailed):
        ScramServer("SCRAM-SHA-256", "srv").on_token(token)


def test_a_channel_binding_that_was_not_offered_is_refused() -> None:
    server, client = ScramServer("SCRAM-SHA-256", "srv"), ScramClient("SCRAM-SHA-256", "alice", "pencil", "cli")
    proof = client.on_challenge(challenge(server, client.first(), secret())) or b""
    with pytest.raises(SaslFailed, match="channel binding"):
        server.on_token(proof.replace(b"c=biws", b"c=eSws"))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "server nonce"),
        (b"r=cli,s=c2FsdA==,i=4096", "server nonce"),
        (b"r=clisrv,s=c2FsdA==,i=1", "Requested iterations 1 "),
        (b"r=clisrv,s=c2FsdA==,i=999999999", "Requested iterations 999999999 "),
        (b"r=clisrv,s=!,i=4096", "format"),
    ],
)
def test_what_a_client_refuses(message: bytes, why: str) -> None:
    with pytest.raises(SaslFailed, match=why):
        ScramClient("SCRAM-SHA-256", "alice", "pencil", "cli").on_challenge(message)


def test_a_server_that_lacks_the_credential_is_found_out() -> None:
    server, client = ScramServer("SCRAM-SHA-256", "srv"), ScramClient("SCRAM-SHA-256", "alice", "pencil", "cli")
    client.on_challenge(challenge(server, client.first(), secret()))
    with pytest.raises(SaslFailed, match="Invalid server signature"):
        client.on_challenge(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(SaslFailed, match="failed: other-error"):
        client.on_challenge(b"e=other-error")
