"""The declarations, field by field, against Kafka's schemas as data: layouts, names, defaults, ignorable fields."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from kafka_golden import layouts, message_classes, tables

from kalda.base.errors import ErrorCode
from kalda.base.ids import uuid_from_text
from kalda.protocol.apis import API, ApiKey, Listener, request_class, response_class
from kalda.protocol.notation import FieldSpec, Message, Request, Response, Struct
from kalda.protocol.record_framing import coordinator_classes
from kalda.protocol.schema import WireField, WireStruct, is_flexible, parse_versions, supported_versions, wire_struct

LISTENERS = {"broker": Listener.BROKER, "controller": Listener.CONTROLLER}


def test_every_message_is_declared_and_no_other() -> None:
    assert sorted(message_classes()) == sorted(layouts())


@pytest.mark.parametrize("name", sorted(layouts()))
def test_layout(name: str) -> None:
    cls, data = message_classes()[name], layouts()[name]
    assert supported_versions(cls) == range(data["lowest"], data["highest"] + 1)
    for row in data["layouts"]:
        for version in range(row["versions"][0], row["versions"][1] + 1):
            first = data["first_flexible"]
            flexible = first is not None and version >= first
            assert is_flexible(cls, version) == flexible
            assert as_data(wire_struct(cls, version, flexible), version) == plain(row), f"version {version}"


def as_data(layout: WireStruct, version: int) -> Any:
    """A layout in the form of the schemas."""
    fields = [field_as_data(field, version, layout.flexible) for field in layout.fields]
    if not layout.flexible:
        return {"fields": fields}
    tagged = [{"tag": field.tag, **field_as_data(field, version, True)} for field in layout.tagged]
    return {"fields": fields, "tagged": tagged}


def field_as_data(field: WireField, version: int, flexible: bool) -> Any:
    data: dict[str, Any] = {"name": field.name, **type_as_data(field._replace(is_list=False), version, flexible)}
    if field.is_list:
        items = {key: value for key, value in data.items() if key not in ("name", "nullable")}
        data = {"name": field.name, "type": "array", "items": items}
        if flexible:
            data["compact"] = True
    if field.nullable:
        data["nullable"] = True
    return data


def type_as_data(field: WireField, version: int, flexible: bool) -> Any:
    if field.struct is not None:
        return {"type": "struct", **as_data(wire_struct(field.struct, version, flexible), version)}
    compact = flexible and field.kind in ("String", "Bytes", "Records")
    kind = "string" if field.kind == "LegacyString" else field.kind.lower()
    return {"type": kind, "compact": True} if compact else {"type": kind}


def plain(row: Any) -> Any:
    """A layout of the schemas without the keys that are not about the wire."""
    if isinstance(row, dict):
        return {key: plain(value) for key, value in row.items() if key != "versions"}
    return [plain(one) for one in row] if isinstance(row, list) else row


@pytest.mark.parametrize("name", sorted(layouts()))
def test_fields(name: str) -> None:
    """Defaults, and whether a field may be dropped in versions that lack it."""
    cls, data = message_classes()[name], layouts()[name]
    seen: set[str] = set()
    check_fields(cls, cls, data["fields"], "", seen)
    assert seen == set(data["fields"])


def check_fields(message: type[Message], cls: type[Struct], fields: Any, prefix: str, seen: set[str]) -> None:
    fresh = cls()
    for name, declared in cls.declared.items():
        path = f"{prefix}.{name}" if prefix else name
        seen.add(path)
        row = fields[path]
        spec = declared if isinstance(declared, FieldSpec) else None
        supported = supported_versions(message)
        versions = supported if spec is None else parse_versions(spec.versions)
        has = [version for version in supported if version in versions]
        # A nested field's range is compared only in versions that have its struct.
        assert [v for v in has if v in parse_versions(row["versions"])] == [
            v for v in supported if v in parse_versions(row["versions"])
        ], path
        if len(has) < len(supported):
            assert spec is not None
            assert spec.ignorable == row.get("ignorable", False), path
        nested = nested_class(cls, name)
        default = expected_default(row["default"], getattr(fresh, name), nested)
        if default is None and "nullable_versions" not in row:
            default = b""  # Kafka's default is null here, which it cannot encode
        assert getattr(fresh, name) == default, path
        if nested is not None:
            check_fields(message, nested, fields, path, seen)


def nested_class(cls: type[Struct], name: str) -> type[Struct] | None:
    version = next(v for v in range(100) if name not in {absent[0] for absent in wire_struct(cls, v, False).absent})
    layout = wire_struct(cls, version, False)
    return next(field.struct for field in layout.fields + layout.tagged if field.name == name)


def expected_default(default: Any, actual: Any, nested: type[Struct] | None) -> Any:
    if default == "struct of defaults":
        assert nested is not None
        return nested()
    if isinstance(actual, bytes) and isinstance(default, str):
        return uuid_from_text(default) if len(actual) == 16 else base64.b64decode(default)
    return default


def test_api_table() -> None:
    rows = {row["api_key"]: row for row in tables()["apis"]}
    assert sorted(rows) == sorted(API) == sorted(int(key) for key in ApiKey)
    for key, row in rows.items():
        api = API[key]
        assert (api.key.name, api.name) == (row["enum"], row["name"])
        assert (api.lowest, api.highest) == (row["lowest"], row["highest"])
        assert api.unstable_latest == row["latest_version_unstable"], api.name
        assert api.forwarded == row["forwardable"], api.name
        assert {listener for name, listener in LISTENERS.items() if listener in api.listeners} == {
            LISTENERS[name] for name in row["listeners"] if name in LISTENERS
        }, api.name
        for version in range(api.lowest, api.highest + 1):
            assert api.is_flexible(version) == (row["request_header"][str(version)] == 2)
            assert api.response_header_version(version) == row["response_header"][str(version)]
        check_announced(api, row["announced"])


def check_announced(api: Any, announced: Any) -> None:
    for listener, span in announced.items():
        unstable = listener.endswith("_unstable")
        if span is not None and LISTENERS[listener.removesuffix("_unstable")] in api.listeners:
            first = api.lowest if api.advertised_from is None else api.advertised_from
            assert [first, api.highest_served(unstable)] == span, (api.name, listener)


def test_classes_of_the_api_table() -> None:
    for key, api in API.items():
        request, response = request_class(key), response_class(key)
        assert issubclass(request, Request)
        assert issubclass(response, Response)
        assert request.API_KEY == response.API_KEY == key
        assert supported_versions(request) == supported_versions(response) == range(api.lowest, api.highest + 1)
        assert [is_flexible(request, version) for version in supported_versions(request)] == [
            api.is_flexible(version) for version in supported_versions(request)
        ]


def test_record_types() -> None:
    types = tables()["record_types"]
    for row in types["metadata"]:
        cls = message_classes()[row["name"]]
        assert row["id"] == cls.RECORD_TYPE
        assert supported_versions(cls) == range(row["lowest"], row["highest"] + 1)
    for name, data in layouts().items():
        if data["kind"] in ("coordinator-key", "coordinator-value"):
            cls = message_classes()[name]
            assert data["record_type"] == cls.RECORD_TYPE, name
            module = cls.__module__.rpartition(".")[2]
            classes = coordinator_classes(module)[data["kind"] == "coordinator-value"]
            assert classes[data["record_type"]] is cls


def test_error_codes() -> None:
    rows = {row["name"]: row for row in tables()["errors"]}
    assert {code.name: int(code) for code in ErrorCode} == {name: row["code"] for name, row in rows.items()}
    for code in ErrorCode:
        assert code.retriable == rows[code.name]["retriable"], code
        assert code.invalid_metadata == rows[code.name]["invalid_metadata"], code
