"""Config tables against Apache Kafka 4.3.1's own results for the same values.

`config_checks.json`: values and texts that Kafka's own config classes accepted or refused. `config_descriptions.json`:
what a Kafka node answered to DescribeConfigs after some alterations, which are repeated here.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.base.configs import client_metrics, documentation, dynamic, group, topic
from kalda.base.configs.addresses import ListenerEndpoint
from kalda.base.configs.admin import ADMIN
from kalda.base.configs.broker import (
    BROKER,
    DYNAMIC,
    DYNAMIC_ONLY,
    KALDA_KEYS,
    PER_BROKER_ONLY,
    base_name,
    find_key,
    synonyms,
)
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.definition import (
    DOUBLE,
    INT,
    LIST,
    SHORT,
    Definition,
    InvalidConfig,
    Key,
    Type,
    parse_duration_ms,
    parse_value,
    to_text,
)
from kalda.base.configs.documentation import CLIENT
from kalda.base.configs.dynamic import Entry, Layers, check_alteration, effective
from kalda.base.configs.producer import PRODUCER
from kalda.base.configs.server import ServerConfig
from kalda.base.configs.share_consumer import SHARE_CONSUMER
from kalda.base.errors import ErrorCode
from kalda.base.texts import parse_properties

GOLDEN = Path(__file__).parents[2] / "golden" / "base"
CHECKS: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "config_checks.json").read_text())
DESCRIPTIONS: dict[str, list[list[Any]]] = json.loads((GOLDEN / "config_descriptions.json").read_text())

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
}
BROKER_ONLY = {
    "process.roles": "broker",
    "node.id": "2",
    "controller.quorum.bootstrap.servers": "one:9093,[::1]:9094",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
}


def label(case: dict[str, Any]) -> str:
    configs = {name: text for name, text in case["configs"].items() if COMBINED.get(name) != text}
    missing = [f"-{name}" for name in COMBINED if name not in case["configs"]]
    return ";".join([f"{name}={text}" for name, text in configs.items()] + missing)[:90]


def outcome(check: Any, *args: Any, **kwargs: Any) -> str | None:
    try:
        check(*args, **kwargs)
    except InvalidConfig as error:
        return error.message
    return None


# -- against Kafka


@pytest.mark.parametrize("case", CHECKS["topic"], ids=label)
def test_topic_checks(case: dict[str, Any]) -> None:
    error = outcome(
        topic.validate,
        case["configs"],
        ServerConfig(COMBINED).topic_defaults(),
        existing=case.get("existing"),
        remote_storage=case.get("remote_storage", False),
    )
    assert error == case["error"]


@pytest.mark.parametrize("case", CHECKS["group"], ids=label)
def test_group_checks(case: dict[str, Any]) -> None:
    assert outcome(group.validate, case["configs"], ServerConfig(COMBINED).values, lambda: ["sticky"]) == case["error"]


@pytest.mark.parametrize("case", CHECKS["client_metrics"], ids=label)
def test_client_metrics_checks(case: dict[str, Any]) -> None:
    assert outcome(client_metrics.validate, "subscription", case["configs"]) == case["error"]


MESSAGES_OF_JAVA = ("begin 0, end -1", "For input string")
"""Texts of Java's own exceptions, for which Kalda has other texts."""
NO_CLASSES = ("could not be found", "cannot be found")
"""Errors about missing classes. Kalda loads no classes, so it accepts these values."""


@pytest.mark.parametrize("case", CHECKS["broker"], ids=label)
def test_broker_checks(case: dict[str, Any]) -> None:
    error = outcome(ServerConfig, case["configs"])
    if case["error"] is None:
        assert error is None
        gives = gist(ServerConfig(case["configs"]))
        assert {name: gives[name] for name in case["gives"]} == case["gives"]
    elif case["configs"].get("node.id") == "x":
        assert error == case["error"].replace("broker.id", "node.id")  # Kafka's error names the synonym
    elif any(words in case["error"] for words in MESSAGES_OF_JAVA):
        assert error is not None
    elif not any(words in case["error"] for words in NO_CLASSES):
        assert error == case["error"]


def gist(config: ServerConfig) -> dict[str, Any]:
    def shown(endpoints: list[ListenerEndpoint]) -> list[list[str]]:
        return [[e.listener, e.security_protocol, e.host or "null", str(e.port)] for e in endpoints]

    return {
        "listeners": shown(config.listeners),
        "advertised": shown(config.advertised_listeners),
        "controller": shown(config.controller_listeners),
        "advertised_controller": shown(config.advertised_controller_listeners),
        "inter_broker": f"{config.inter_broker_listener_name}/{config.protocol_map[config.inter_broker_listener_name]}",
        "log_dirs": list(config.log_dirs),
        "metadata_log_dir": config.metadata_log_dir,
        "retention_ms": config.log_retention_ms,
        "roll_ms": config.log_roll_ms,
        "jitter_ms": config.log_roll_jitter_ms,
        "flush_ms": config.topic_defaults()["flush.ms"],
        "voters": list(config["controller.quorum.voters"]),
        "bootstrap": list(config["controller.quorum.bootstrap.servers"]),
        "early_start": sorted(config.early_start_listeners),
        "protocols": config.protocol_map,
    }


LAYERS = Layers(
    static={
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "127.0.0.1:39193",
        "listeners": "PLAINTEXT://127.0.0.1:39192,CONTROLLER://127.0.0.1:39193",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:39192,CONTROLLER://127.0.0.1:39193",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "/tmp/kalda-golden/data",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    },
    cluster={
        "log.segment.bytes": "2000000",
        "log.retention.ms": "6000000",
        "min.insync.replicas": "1",
        "max.connections": "5000",
        "listener.name.plaintext.max.connections": "77",
        "unclean.leader.election.enable": "false",
    },
    broker={
        "log.retention.ms": "-5",
        "log.cleaner.threads": "2",
        "foo.bar": "x",
        "listener.name.plaintext.ssl.keystore.type": "PEM",
        "listener.name.plaintext.ssl.keystore.password": "abc",
        "max.connections": "10",
        "background.threads": "10",
        "leader.replication.throttled.rate": "100",
        "unclean.leader.election.enable": "true",
        "log.cleanup.policy": "compact",
        "listener.name.plaintext.num.io.threads": "9",
        "listener.name.plaintext.num.network.threads": "3",
        "listener.name.plaintext.foo": "3",
        "password.encoder.secret": "3",
    },
)
CONFIG, FAULTS = effective(LAYERS)


def rows(entries: list[Entry]) -> list[list[Any]]:
    return [
        [e.name, e.value, e.read_only, e.source, e.sensitive, e.type, [[s.name, s.value, s.source] for s in e.synonyms]]
        for e in sorted(entries, key=lambda e: e.name)
    ]


def test_describe_topic() -> None:
    overrides = {
        "retention.ms": "0100000",
        "cleanup.policy": " compact , delete",
        "min.cleanable.dirty.ratio": "5e-1",
        "preallocate": "TRUE",
    }
    assert rows(dynamic.describe_topic(LAYERS, CONFIG, overrides)) == DESCRIPTIONS["topic/t1"]
    some = dynamic.describe_topic(LAYERS, CONFIG, overrides, ["retention.ms", "nope"])
    assert [entry.name for entry in some] == ["retention.ms"]


def test_describe_broker() -> None:
    assert FAULTS == []
    described = rows(dynamic.describe_broker(LAYERS, CONFIG))
    own = {key.name for key in KALDA_KEYS}
    assert [row for row in described if row[0] not in own] == DESCRIPTIONS["broker/1"]
    assert own <= {row[0] for row in described}


def test_describe_cluster_default() -> None:
    assert rows(dynamic.describe_cluster_default(LAYERS)) == DESCRIPTIONS["broker/"]


def test_describe_group() -> None:
    described = dynamic.describe_group(LAYERS, CONFIG, {"consumer.session.timeout.ms": "50000"}, lambda: "sticky")
    assert rows(described) == DESCRIPTIONS["group/g"]


def test_describe_client_metrics() -> None:
    overrides = {"interval.ms": "1000", "match": "client_id=a.*,client_source_port=9"}
    assert rows(dynamic.describe_client_metrics(overrides)) == DESCRIPTIONS["metrics/m"]
    assert rows(dynamic.describe_client_metrics({})) == DESCRIPTIONS["metrics/nosuch"]


# -- alterations


@pytest.mark.parametrize(
    ("altered", "per_broker", "message"),
    [
        ({"node.id": "5", "log.dirs": "x"}, True, "Cannot update these configs dynamically: [node.id, log.dirs]"),
        ({"log.retention.hours": "5"}, True, "Cannot update these configs dynamically: [log.retention.hours]"),
        (
            {"listeners": "PLAINTEXT://:1"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
        ),
        (
            {"listener.name.plaintext.ssl.keystore.type": "PEM"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.plaintext.ssl.keystore.type]",
        ),
        (
            {"ssl.keystore.type": "PEM"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.type]",
        ),
        ({"log.cleaner.threads": "x"}, True, "Invalid value x for configuration log.cleaner.threads: "),
        ({"num.io.threads": "100"}, True, "value should not be greater than double the current value 8"),
        ({"num.io.threads": "1"}, True, "value should be at least half the current value 8"),
        ({"log.cleaner.threads": "0"}, True, "value should be at least 1"),
        ({"listeners": "PLAINTEXT://h:1"}, True, "controller.listener.names must contain at least one value"),
        ({"max.connections.per.ip.overrides": "a"}, True, "max.connections.per.ip.overrides"),
    ],
)
def test_alterations_that_are_refused(altered: dict[str, str], per_broker: bool, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_alteration(Layers(COMBINED), altered, per_broker=per_broker)
    assert message in caught.value.message
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_alterations_that_pass() -> None:
    config = check_alteration(
        Layers({**COMBINED, "log.retention.hours": "5"}),
        {"log.retention.ms": "7", "some.plugin.key": "x", "listener.name.plaintext.max.connections": "3"},
        per_broker=True,
    )
    assert config.log_retention_ms == 7
    assert config.for_listener("PLAINTEXT", "max.connections") == 3
    assert config.for_listener("CONTROLLER", "max.connections") == 2**31 - 1
    assert config.unknown == ["some.plugin.key"]
    check_alteration(Layers(COMBINED), {"listener.name.plaintext.max.connections": "3"}, per_broker=False)


def test_precedence_of_layers() -> None:
    layers = Layers({**COMBINED, "log.retention.ms": "1"}, {"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    assert effective(layers)[0].log_retention_ms == 3
    assert effective(Layers(layers.static, layers.cluster))[0].log_retention_ms == 2
    assert effective(Layers(layers.static))[0].log_retention_ms == 1


def test_a_bad_dynamic_value_is_left_out() -> None:
    config, faults = effective(Layers(COMBINED, {"log.segment.bytes": "1"}, {"num.io.threads": "16"}))
    assert config["log.segment.bytes"] == 1 << 30
    assert config["num.io.threads"] == 16
    assert len(faults) == 1


# -- tables


def test_every_default_is_valid() -> None:
    for table in (BROKER, DYNAMIC_ONLY, topic.TOPIC, group.GROUP, client_metrics.CLIENT_METRICS):
        for key in table:
            text = to_text(table.default(key.name))
            if text is None or key.name.startswith("controller.quorum."):
                continue
            assert key.parse(text) == key.default, key.name


UNBOUNDED = {
    "consumer.assignor.offload.enable",
    "share.assignor.offload.enable",
    "streams.acceptable.recovery.lag",
    "streams.assignor.offload.enable",
    "streams.initial.rebalance.delay.ms",
    "streams.rack.aware.assignment.tags",
}
"""Keys of groups that have a broker key for their default and none for their bounds."""


def test_tables_agree_with_each_other() -> None:
    assert len(BROKER) == 379 + len(KALDA_KEYS)
    assert all(key.name.startswith("kalda.") for key in KALDA_KEYS)
    assert PER_BROKER_ONLY <= DYNAMIC
    assert len(DYNAMIC) == 110
    defaults = ServerConfig(COMBINED).topic_defaults()
    for key in topic.TOPIC:
        assert defaults[key.name] == key.default, key.name
    for name, sources in topic.BROKER_SYNONYMS.items():
        assert name in topic.TOPIC
        assert synonyms(sources[0][0]) == tuple(source for source, _ in sources)
    for name, source in group.BROKER_SYNONYMS.items():
        if name == "streams.assignor.name":
            continue
        assert group.GROUP[name].default == BROKER[source].default
        bounds = (group.bound_key(name, end) for end in ("min", "max"))
        assert any(bound in BROKER for bound in bounds) or name in UNBOUNDED


def test_documentation_is_of_keys_that_exist() -> None:
    assert set(documentation.TOPIC) == set(topic.TOPIC.names())
    assert set(documentation.GROUP) == set(group.GROUP.names())
    assert set(documentation.BROKER) <= {*BROKER.names(), *DYNAMIC_ONLY.names()}
    assert dynamic.documentation("topic", "retention.ms")
    assert dynamic.documentation("broker", "listener.name.x.max.connections") == documentation.BROKER["max.connections"]
    assert dynamic.documentation("broker", "rare.key") is None
    assert set(CLIENT) == {*PRODUCER.names(), *CONSUMER.names(), *SHARE_CONSUMER.names(), *ADMIN.names()}


def test_listener_prefixes() -> None:
    assert base_name("listener.name.internal.ssl.keystore.type") == "ssl.keystore.type"
    assert base_name("listener.name.sasl.scram-sha-256.sasl.jaas.config") == "sasl.jaas.config"
    key = find_key("listener.name.internal.max.connections")
    assert key is not None
    assert key.name == "max.connections"
    assert find_key("no.such.key") is None


# -- a node's configuration


def test_broker_only_node() -> None:
    config = ServerConfig(BROKER_ONLY)
    assert (config.node_id, config.is_broker, config.is_controller) == (2, True, False)
    assert config.bootstrap_servers == [("one", 9093), ("::1", 9094)]
    assert config.broker_listeners == [ListenerEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]
    assert config.controller_listeners == []
    assert config.protocol_map["CONTROLLER"] == "PLAINTEXT"
    assert str(ListenerEndpoint("A", "SSL", "::1", 1)) == "A://[::1]:1"


def test_broker_must_not_listen_as_controller() -> None:
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9093"
    assert "must not contain a value" in (outcome(ServerConfig, {**BROKER_ONLY, "listeners": listeners}) or "")


def test_the_keys_of_the_authorizer_are_known() -> None:
    """No table of Kafka has them: its StandardAuthorizer reads them."""
    properties = {**COMBINED, "super.users": "User:a", "allow.everyone.if.no.acl.found": "true", "no.key": "x"}
    assert ServerConfig(properties).unknown == ["no.key"]


def test_an_authorizer_cannot_be_set_dynamically() -> None:
    with pytest.raises(InvalidConfig, match=r"Cannot update these configs dynamically: \[authorizer.class.name\]"):
        check_alteration(Layers(COMBINED), {"authorizer.class.name": "x"}, per_broker=True)


def test_a_dynamic_value_of_a_static_key_is_left_out_alone() -> None:
    """Controllers store it unchecked; the other dynamic values stay effective."""
    config, faults = effective(Layers(COMBINED, {"authorizer.class.name": "x"}, {"num.io.threads": "16"}))
    assert (config["authorizer.class.name"], config["num.io.threads"]) == ("", 16)
    assert [fault.message for fault in faults] == ["Cannot update these configs dynamically: [authorizer.class.name]"]


@pytest.mark.parametrize("name", ["node.id", "broker.id"])
def test_a_bad_node_id_is_named_as_it_is_written(name: str) -> None:
    others = {key: value for key, value in COMBINED.items() if key != "node.id"}
    assert f"for configuration {name}:" in (outcome(ServerConfig, {**others, name: "abc"}) or "")


def test_properties_for_zookeeper_name_the_keys_of_kraft() -> None:
    error = outcome(ServerConfig, {"broker.id": "0", "zookeeper.connect": "zk:2181", "listeners": "PLAINTEXT://:9092"})
    assert error is not None
    assert error.startswith("zookeeper.connect=zk:2181: ZooKeeper is not supported")
    missing = "process.roles, node.id, controller.listener.names, controller.quorum.bootstrap.servers"
    assert f"these are missing: {missing} (" in error
    assert outcome(ServerConfig, {**COMBINED, "zookeeper.connect": "zk:2181"}) is None


def test_from_properties() -> None:
    text = "\n".join(f"{name} = {value}" for name, value in COMBINED.items()) + "\nmy.own=1\nlog.dirs=/a\\\n  ,/b\n"
    config = ServerConfig(parse_properties(text))
    assert config.log_dirs == ("/a", "/b")
    assert config.unknown == ["my.own"]
    with pytest.raises(KeyError):
        config["my.own"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a=1", {"a": "1"}),
        ("  a : 1  ", {"a": "1  "}),
        ("a 1=2", {"a": "1=2"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("#a=1\n!b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=b\\\n   c\\\n#d", {"a": "bc#d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=\\t\\n\\u0041\\q", {"a": "\t\nAq"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=b\\", {"a": "b"}),
        ("a==b", {"a": "=b"}),
    ],
)
def test_properties(text: str, parsed: dict[str, str]) -> None:
    assert parse_properties(text) == parsed


def test_malformed_unicode_escape() -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse_properties("a=\\u12g4")


@given(st.text())
def test_properties_never_fail_otherwise(text: str) -> None:
    with contextlib.suppress(ValueError):  # for a malformed escape, the only error
        for name, value in parse_properties(text).items():
            assert isinstance(name, str)
            assert isinstance(value, str)


# -- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00012345, "1.2345E-4"),
        (1234567.0, "1234567.0"),
        (1e7, "1.0E7"),
        (2147483647.0, "2.147483647E9"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (-123456789.125, "-1.23456789125E8"),
        (0.0, "0.0"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (True, "true"),
        (("a", "b"), "a,b"),
        ((), ""),
        (None, None),
        (7, "7"),
    ],
)
def test_values_as_java_writes_them(value: Any, text: str | None) -> None:
    assert to_text(value) == text


@given(st.floats(allow_nan=False))
def test_doubles_survive(value: float) -> None:
    assert parse_value("x", to_text(value) or "", DOUBLE) == value


@pytest.mark.parametrize("text", ["", "1.0", "0x10", "1_0", "٣", "32768", "-32769", "1" * 5000])
def test_not_a_short(text: str) -> None:
    with pytest.raises(InvalidConfig, match="Not a number of type SHORT"):
        parse_value("x", text, SHORT)


def test_integers_as_java_reads_them() -> None:
    assert parse_value("x", " +0012 ", INT) == 12
    assert parse_value("x", "-2147483648", INT) == -(2**31)


def test_lists() -> None:
    assert parse_value("x", " a , b,c ", LIST) == ("a", "b", "c")
    assert parse_value("x", "  ", LIST) == ()
    assert parse_value("x", "a,", LIST) == ("a", "")
    assert parse_value("x", ",a\t,\n, b\x01 ,c d", LIST) == ("", "a", "", "b\x01", "c d")
    long = "a" + " " * 1_000_000 + "b"
    assert parse_value("x", long, LIST) == (long,)


def test_passwords_are_kept_as_they_are() -> None:
    key = Key("p", Type.PASSWORD, None)
    assert key.sensitive
    assert key.parse(" secret ") == " secret "
    assert "p" in Definition([key])


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000),
        ("P1DT1.5S", 86_401_500),
        ("pt0s", 0),
        ("P", None),
        ("PT", None),
        ("1h", None),
        ("P1Y", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5d", 0.5), ("1e3", 1000.0), ("0.5f", 0.5), ("1D", 1.0), (".5", 0.5), ("5.", 5.0), ("1.e2", 100.0),
        ("+.5e-1d", 0.05), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf),
        ("0x1p-1", 0.5), ("0X.8P0d", 0.5), ("0x1.p1", 2.0), ("0x1.8p+1F", 3.0), ("0x1p-5000", 0.0),
        ("0x1p5000", math.inf), ("-0x1p5000", -math.inf),
    ],
)  # fmt: skip
def test_doubles_are_read_as_java_does(text: str, value: float) -> None:
    """The expected values are those of `Double.parseDouble`."""
    assert parse_value("x", text, DOUBLE) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "inf", "nan", "infinity", "Infinityd", "NaNf", "1_0", "1e", "e1", "1d1", "1ff", "d", ".", "\u0661",
        "0x1", "0x1p", "0xp1", "0x.p1", "0x1p1.0",
    ],
)  # fmt: skip
def test_what_java_refuses_as_a_double_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="Not a number of type DOUBLE"):
        parse_value("x", text, DOUBLE)


@pytest.mark.parametrize("text", ["1" * 32_766 + "x", "1." + "1" * 32_764 + "x"])
def test_a_double_of_many_digits_is_refused_in_linear_time(text: str) -> None:
    """A quadratic search takes minutes."""
    with pytest.raises(InvalidConfig, match="Invalid value 1"):
        parse_value("x", text, DOUBLE)
