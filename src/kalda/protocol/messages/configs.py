"""Configs: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74)."""

from __future__ import annotations

from kalda.protocol.notation import Bool, Int8, Int16, Int32, Request, Response, String, Struct, field


class DescribeConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: list[String] | None = []


class DescribeConfigsRequest(Request, key=32, versions="1-4", flexible="4+"):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Bool = field("3+", default=False)


class DescribeConfigsSynonym(Struct):
    name: String = ""
    value: String | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Struct):
    name: String = ""
    value: String | None = ""
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Int8 = field("3+", default=0, ignorable=True)
    documentation: String | None = field("3+", default="", ignorable=True)


class DescribeConfigsResult(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Response, key=32, versions="1-4", flexible="4+"):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []


class AlterConfigsRequestAlterableConfig(Struct):
    name: String = ""
    value: String | None = ""


class AlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterConfigsRequestAlterableConfig] = []


class AlterConfigsRequest(Request, key=33, versions="0-2", flexible="2+"):
    resources: list[AlterConfigsRequestAlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Response, key=33, versions="0-2", flexible="2+"):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResponseAlterConfigsResourceResponse] = []


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = ""


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = []


class IncrementalAlterConfigsRequest(Request, key=44, versions="0-1", flexible="1+"):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Response, key=44, versions="0-1", flexible="1+"):
    throttle_time_ms: Int32 = 0
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = []


class ListConfigResourcesRequest(Request, key=74, versions="0-1", flexible="0+"):
    resource_types: list[Int8] = field("1+", default=[])


class ConfigResource(Struct):
    resource_name: String = ""
    resource_type: Int8 = field("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response, key=74, versions="0-1", flexible="0+"):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
