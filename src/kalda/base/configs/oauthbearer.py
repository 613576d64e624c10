"""The keys of OAUTHBEARER, which nodes and clients have alike."""

from __future__ import annotations

from kalda.base.configs.definition import (
    BOOLEAN,
    CLASS,
    INT,
    LIST,
    LONG,
    PASSWORD,
    STRING,
    Between,
    Items,
    Key,
    OneOfAnyCase,
)

_OAUTH = "org.apache.kafka.common.security.oauthbearer."

OAUTHBEARER_KEYS = (
    Key("sasl.oauthbearer.allow.unverified.audience", BOOLEAN, False),
    Key("sasl.oauthbearer.allow.unverified.issuer", BOOLEAN, False),
    Key("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", OneOfAnyCase("ES256", "RS256")),
    Key("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    Key("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, Between(0, 86400)),
    Key("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    Key("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False),
    Key("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, Between(0, 3600)),
    Key("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    Key("sasl.oauthbearer.assertion.file", STRING, None),
    Key("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    Key("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    Key("sasl.oauthbearer.assertion.template.file", STRING, None),
    Key("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    Key("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    Key("sasl.oauthbearer.clock.skew.seconds", INT, 30),
    Key("sasl.oauthbearer.expected.audience", LIST, (), Items()),
    Key("sasl.oauthbearer.expected.issuer", STRING, None),
    Key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3600000),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10000),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100),
    Key("sasl.oauthbearer.jwks.endpoint.url", STRING, None),
    Key(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        _OAUTH + "DefaultJwtRetriever",
    ),
    Key(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        _OAUTH + "DefaultJwtValidator",
    ),
    Key("sasl.oauthbearer.scope", STRING, None),
    Key("sasl.oauthbearer.scope.claim.name", STRING, "scope"),
    Key("sasl.oauthbearer.sub.claim.name", STRING, "sub"),
    Key("sasl.oauthbearer.token.endpoint.url", STRING, None),
)
