"""Where logins get tokens and passwords, and when a token is requested anew."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from kalda.base.errors import ApiError
from kalda.network.client.security import SECURED_HANDLERS, UNSECURED_HANDLER, ClientSecurity, KeptToken, RefreshWindow
from kalda.security.jaas import OAUTHBEARER_MODULE
from kalda.security.oauthbearer import unsecured_token

MODULE = "operators_logins"
DEFAULT = RefreshWindow.of({}.get)
CONFIGURED: list[dict[str, Any]] = []
UNSECURED = f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="bob";'


class Tokens:
    def configure(self, configs: dict[str, Any]) -> None:
        CONFIGURED.append(configs)
        self._numbers = itertools.count()

    def token(self) -> str:
        return unsecured_token({"sub": f"alice-{next(self._numbers)}", "exp": 2**40})


class Passwords:
    def __init__(self) -> None:
        self._numbers = itertools.count()

    def credentials(self) -> tuple[str, str]:
        return "alice", f"password-{next(self._numbers)}"


class Broken:
    def token(self) -> Any:
        raise RuntimeError("planted-secret")

    def credentials(self) -> Any:
        return "planted-secret"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(MODULE)
    module.__dict__.update(Tokens=Tokens, Passwords=Passwords, Broken=Broken)
    monkeypatch.setitem(sys.modules, MODULE, module)
    CONFIGURED.clear()
    return


@pytest.mark.parametrize(
    ("age_s", "left_s", "random_share", "after_s"),
    [
        (0, 3600, 0.0, 2880),
        (0, 3600, 1.0, 3060),
        (600, 3000, 0.0, 2280),  # a share of the whole life, since the token was issued
        (0, 1000, 1.0, 700),  # not within the buffer of 300 s
        (3500, 400, 0.0, 60),  # not before the period of 60 s
        (0, 100, 0.0, 80),  # a life that is shorter than both together
    ],
)
def test_when_a_token_is_requested_anew(age_s: float, left_s: float, random_share: float, after_s: float) -> None:
    assert DEFAULT.refresh_after_s(age_s, left_s, random_share) == pytest.approx(after_s)


class Timer:
    """A timer that the test runs by hand."""

    def __init__(self, delay_s: float, function: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.function = function
        self.is_cancelled = False

    def start(self) -> None:
        pass

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_token_is_renewed_in_the_background_and_the_former_one_outlasts_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, made = 1_000.0, 0
    timers: list[Timer] = []

    def request() -> str:
        nonlocal made
        made += 1
        if made in (2, 3, 5, 6):
            raise OSError("the endpoint is down")
        return unsecured_token({"sub": f"alice-{made}", "iat": now_s, "exp": now_s + 1_000})

    def timer(delay_s: float, function: Callable[[], None]) -> Any:
        timers.append(Timer(delay_s, function))
        return timers[-1]

    kept = KeptToken(request, lambda: DEFAULT, lambda: now_s, lambda: now_s, lambda: 0.0, timer)
    assert kept.is_missing
    first = kept.token()
    for delay_s in (700, 10, 10):  # the second and the third after a failure
        assert timers[-1].delay_s == delay_s
        now_s += delay_s
        assert (kept.token(), kept.is_missing) == (first, False)
        timers[-1].function()
    assert "the former one is used, which is valid for 290 s more" in caplog.text
    second = kept.token()
    assert (second != first, made, timers[-1].delay_s) == (True, 4, 700)
    now_s += 1_001
    timers[-1].function()
    assert (kept.is_missing, timers[-1].delay_s) == (True, 10)
    with pytest.raises(ApiError, match="no OAuth token could be got: OSError: the endpoint is down"):
        kept.token()
    assert kept.token() not in (first, second)
    assert [each.is_cancelled for each in timers] == [True] * (len(timers) - 1) + [False]
    last = timers[-1]
    del kept
    gc.collect()
    assert last.is_cancelled
    last.function()  # of an object that is not in use any more


@pytest.mark.parametrize(
    ("left_s", "after_s"), [(0, 10), (-5, 10), (0.1, 1), (100, 80), (2**60, threading.TIMEOUT_MAX)]
)
def test_a_token_of_any_life_is_renewed_after_a_time_that_a_timer_can_wait(left_s: float, after_s: float) -> None:
    delays: list[float] = []

    def timer(delay_s: float, function: Callable[[], None]) -> Any:
        delays.append(delay_s)
        return Timer(delay_s, function)

    def request() -> str:
        return unsecured_token({"sub": "alice", "exp": 1_000 + left_s})

    KeptToken(request, lambda: DEFAULT, lambda: 5.0, lambda: 1_000.0, lambda: 0.0, timer).token()
    assert delays == [pytest.approx(after_s)]


def security_of(mechanism: str, jaas: str, **keys: str) -> ClientSecurity:
    values = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    security = ClientSecurity.of(values | {name.replace("_", "."): value for name, value in keys.items()})
    assert security is not None
    return security


def sent(security: ClientSecurity) -> bytes:
    """What a login by PLAIN or OAUTHBEARER sends."""
    login = security.login("localhost")
    assert login is not None
    return login._exchange.first()


def claims_of(security: ClientSecurity) -> str:
    import base64

    token = sent(security).split(b"Bearer ")[1].split(b"\x01")[0]
    return base64.urlsafe_b64decode(token.split(b".")[1] + b"==").decode()


def test_a_login_callback_returns_a_token_that_is_kept() -> None:
    security = security_of(
        "OAUTHBEARER", f"{OAUTHBEARER_MODULE} required;", sasl_login_callback_handler_class=f"{MODULE}:Tokens"
    )
    assert security.blocks
    assert [claims_of(security), claims_of(security)] == ['{"sub":"alice-0","exp":1099511627776}'] * 2
    assert not security.blocks
    assert [each["sasl.mechanism"] for each in CONFIGURED] == ["OAUTHBEARER"]


@pytest.mark.parametrize("key", ["sasl_login_class", "sasl_client_callback_handler_class"])
def test_a_class_that_is_called_for_each_login(key: str) -> None:
    oauth = security_of("OAUTHBEARER", f"{OAUTHBEARER_MODULE} required;", **{key: f"{MODULE}.Tokens"})
    assert ["alice-0" in claims_of(oauth), "alice-1" in claims_of(oauth), oauth.blocks] == [True] * 3
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required;"
    passwords = security_of("PLAIN", plain, **{key: f"{MODULE}:Passwords"})
    assert [sent(passwords), sent(passwords)] == [b"\0alice\0password-0", b"\0alice\0password-1"]
    scram = security_of("SCRAM-SHA-256", plain.replace("plain.Plain", "scram.Scram"), **{key: f"{MODULE}:Passwords"})
    assert b"n=alice," in sent(scram)


def test_the_names_of_kafkas_classes() -> None:
    default: dict[str, str] = {
        "sasl_login_class": "org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerRefreshingLogin",
        "sasl_client_callback_handler_class": (
            "org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslClientCallbackHandler"
        ),
    }
    security = security_of("OAUTHBEARER", UNSECURED, sasl_login_callback_handler_class=UNSECURED_HANDLER, **default)
    assert '"sub":"bob"' in claims_of(security)
    for name in SECURED_HANDLERS:
        with pytest.raises(ValueError, match=r"needs sasl\.oauthbearer\.token\.endpoint\.url"):
            security_of("OAUTHBEARER", UNSECURED, sasl_login_callback_handler_class=name)


def test_what_an_operators_class_raises_or_returns_is_in_no_error() -> None:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required;"
    cases: list[Callable[[], ClientSecurity]] = [
        lambda: security_of("PLAIN", plain, sasl_login_class=f"{MODULE}:Broken"),
        lambda: security_of("OAUTHBEARER", UNSECURED, sasl_login_class=f"{MODULE}:Broken"),
        lambda: security_of("OAUTHBEARER", UNSECURED, sasl_login_callback_handler_class=f"{MODULE}:Broken"),
    ]
    for case in cases:
        with pytest.raises(ApiError, match="the class for logins has") as raised:
            case().login("localhost")
        error: BaseException | None = raised.value
        while error is not None:
            assert "planted-secret" not in str(error)
            error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"sasl_login_class": "com.example.Login"}, r"sasl\.login\.class=com\.example\.Login cannot be imported"),
        ({"sasl_login_callback_handler_class": f"{MODULE}:Passwords"}, "is not a class with a method token"),
        ({"sasl_login_callback_handler_class": f"{MODULE}:Tokens", "sasl_login_refresh_buffer_seconds": "x"}, "number"),
    ],
)
def test_what_is_refused(keys: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        security_of("OAUTHBEARER", UNSECURED, **keys)
