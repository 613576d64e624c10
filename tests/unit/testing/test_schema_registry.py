"""The schema registry of tests, with confluent-kafka's client and with plain HTTP."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kalda.base.errors import WrongState
from kalda.testing import Cluster, SchemaRegistry

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "total", "type": "int"}]})
ITEM = json.dumps({"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


def ask(registry: SchemaRegistry, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(registry.url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_schemas_have_versions_and_ids(registry: SchemaRegistry) -> None:
    assert ask(registry, "POST", "/subjects/a%2Fb/versions", {"schema": ORDER}) == (200, {"id": 1})
    assert ask(registry, "POST", "/subjects/a%2Fb/versions", {"schema": ORDER.replace(" ", "")}) == (200, {"id": 1})
    assert ask(registry, "POST", "/subjects/a%2Fb/versions", {"schema": ITEM}) == (200, {"id": 2})
    assert ask(registry, "POST", "/subjects/other/versions", {"schema": ITEM}) == (200, {"id": 2})
    assert ask(registry, "GET", "/subjects") == (200, ["a/b", "other"])
    assert ask(registry, "GET", "/subjects/a%2Fb/versions") == (200, [1, 2])
    latest = {"subject": "a/b", "id": 2, "version": 2, "schema": ITEM}
    assert ask(registry, "GET", "/subjects/a%2Fb/versions/latest") == (200, latest)
    assert ask(registry, "POST", "/subjects/a%2Fb", {"schema": ITEM}) == (200, latest)
    assert ask(registry, "GET", "/schemas/ids/1") == (200, {"schema": ORDER})
    assert ask(registry, "GET", "/schemas/ids/2/versions") == (
        200,
        [{"subject": "a/b", "version": 2}, {"subject": "other", "version": 1}],
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/schemas/ids/7", None, 40403),
        ("GET", "/subjects/none/versions", None, 40401),
        ("GET", "/subjects/orders/versions/9", None, 40402),
        ("POST", "/subjects/orders", {"schema": ITEM}, 40403),
        ("POST", "/subjects/orders/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/orders/versions", {"schema": ORDER, "schemaType": "THRIFT"}, 42201),
        ("PUT", "/config", {"compatibility": "FULL"}, 42203),
        ("DELETE", "/subjects/orders?permanent=true", None, 40405),
        ("DELETE", "/subjects/orders/versions/1?permanent=true", None, 40407),
        ("GET", "/nothing", None, 404),
    ],
)
def test_what_is_refused_has_the_code_of_the_interface(
    registry: SchemaRegistry, method: str, path: str, body: object, code: int
) -> None:
    ask(registry, "POST", "/subjects/orders/versions", {"schema": ORDER})
    status, answer = ask(registry, method, path, body)
    assert (status, answer["error_code"]) == (int(str(code)[:3]), code)
    assert answer["message"]


def test_a_subject_is_deleted_and_then_deleted_for_good(registry: SchemaRegistry) -> None:
    ask(registry, "POST", "/subjects/orders/versions", {"schema": ORDER})
    ask(registry, "POST", "/subjects/orders/versions", {"schema": ITEM})
    assert ask(registry, "DELETE", "/subjects/orders/versions/1") == (200, 1)
    assert ask(registry, "GET", "/subjects/orders/versions") == (200, [2])
    assert ask(registry, "DELETE", "/subjects/orders") == (200, [2])
    assert ask(registry, "GET", "/subjects") == (200, [])
    assert ask(registry, "GET", "/subjects?deleted=true") == (200, ["orders"])
    assert ask(registry, "DELETE", "/subjects/orders?permanent=true") == (200, [1, 2])
    assert ask(registry, "GET", "/subjects?deleted=true") == (200, [])
    assert ask(registry, "GET", "/schemas/ids/1") == (200, {"schema": ORDER}), "ids stay"


def test_records_of_a_schema_go_through_a_cluster(kalda_cluster: Cluster, kalda_topic: str) -> None:
    pytest.importorskip("confluent_kafka.schema_registry.avro", reason="needs kalda[registry]")
    from kalda import Consumer, Producer
    from kalda.registry import Registry

    with SchemaRegistry() as running:
        client = Registry(running.url)
        config = kalda_cluster.client_config()
        with Producer(config, value_serializer=client.avro(ORDER)) as producer:
            producer.send(kalda_topic, {"total": 42}).result()
        with Consumer(config, value_deserializer=client.read_avro()) as consumer:
            consumer.assign([(kalda_topic, 0)])
            consumer.seek_to_beginning()
            assert [record.value for record in consumer.poll(30)] == [{"total": 42}]
        assert client.client.get_subjects() == [f"{kalda_topic}-value"]
        assert client.client.test_compatibility(f"{kalda_topic}-value", client.client.get_schema(1)) is True
        client.client.delete_subject(f"{kalda_topic}-value")
        assert client.client.get_subjects() == []


def test_it_is_started_and_stopped() -> None:
    registry = SchemaRegistry()
    with pytest.raises(WrongState, match="not running"):
        registry.url  # noqa: B018 - the property raises
    with registry:
        url = registry.url
        kept = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        kept.request("GET", "/subjects")
        assert kept.getresponse().read() == b"[]"
    registry.stop()
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection(url.removeprefix("http://"), timeout=30).connect()
    kept.close()
