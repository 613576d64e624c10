"""The keywords of clients, by the tables of keys in `kalda.base.configs`: for type checkers and editors only.

Written by tests/unit/client/test_keywords.py, and not edited. Every value may be the text that a properties file has;
None is as no value.
"""

from __future__ import annotations

from typing import TypedDict


class ClientKeywords(TypedDict, total=False):
    """Of all clients."""

    bootstrap_resolve_timeout_ms: int | str | None
    bootstrap_servers: str | list[str] | tuple[str, ...] | None
    client_dns_lookup: str | None
    client_id: str | None
    client_rack: str | None
    connections_max_idle_ms: int | str | None
    enable_metrics_push: bool | str | None
    interceptor_classes: object
    kalda_sasl_oauthbearer_allowed_files: str | list[str] | tuple[str, ...] | None
    kalda_sasl_oauthbearer_allowed_urls: str | list[str] | tuple[str, ...] | None
    metadata_cluster_check_enable: bool | str | None
    metadata_max_age_ms: int | str | None
    metadata_recovery_rebootstrap_trigger_ms: int | str | None
    metadata_recovery_strategy: str | None
    metric_reporters: str | list[str] | tuple[str, ...] | None
    metrics_num_samples: int | str | None
    metrics_recording_level: str | None
    metrics_sample_window_ms: int | str | None
    receive_buffer_bytes: int | str | None
    reconnect_backoff_max_ms: int | str | None
    reconnect_backoff_ms: int | str | None
    request_timeout_ms: int | str | None
    retry_backoff_max_ms: int | str | None
    retry_backoff_ms: int | str | None
    sasl_client_callback_handler_class: object
    sasl_jaas_config: str | None
    sasl_kerberos_kinit_cmd: str | None
    sasl_kerberos_min_time_before_relogin: int | str | None
    sasl_kerberos_service_name: str | None
    sasl_kerberos_ticket_renew_jitter: float | str | None
    sasl_kerberos_ticket_renew_window_factor: float | str | None
    sasl_login_callback_handler_class: object
    sasl_login_class: object
    sasl_login_connect_timeout_ms: int | str | None
    sasl_login_read_timeout_ms: int | str | None
    sasl_login_refresh_buffer_seconds: int | str | None
    sasl_login_refresh_min_period_seconds: int | str | None
    sasl_login_refresh_window_factor: float | str | None
    sasl_login_refresh_window_jitter: float | str | None
    sasl_login_retry_backoff_max_ms: int | str | None
    sasl_login_retry_backoff_ms: int | str | None
    sasl_mechanism: str | None
    sasl_oauthbearer_allow_unverified_audience: bool | str | None
    sasl_oauthbearer_allow_unverified_issuer: bool | str | None
    sasl_oauthbearer_assertion_algorithm: str | None
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: int | str | None
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_jti_include: bool | str | None
    sasl_oauthbearer_assertion_claim_nbf_seconds: int | str | None
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_clock_skew_seconds: int | str | None
    sasl_oauthbearer_expected_audience: str | list[str] | tuple[str, ...] | None
    sasl_oauthbearer_expected_issuer: str | None
    sasl_oauthbearer_header_urlencode: bool | str | None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int | str | None
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int | str | None
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int | str | None
    sasl_oauthbearer_jwks_endpoint_url: str | None
    sasl_oauthbearer_jwt_retriever_class: object
    sasl_oauthbearer_jwt_validator_class: object
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_scope_claim_name: str | None
    sasl_oauthbearer_sub_claim_name: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    security_protocol: str | None
    security_providers: str | None
    send_buffer_bytes: int | str | None
    socket_connection_setup_timeout_max_ms: int | str | None
    socket_connection_setup_timeout_ms: int | str | None
    ssl_cipher_suites: str | list[str] | tuple[str, ...] | None
    ssl_enabled_protocols: str | list[str] | tuple[str, ...] | None
    ssl_endpoint_identification_algorithm: str | None
    ssl_engine_factory_class: object
    ssl_key_password: str | None
    ssl_keymanager_algorithm: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_type: str | None
    ssl_protocol: str | None
    ssl_provider: str | None
    ssl_secure_random_implementation: str | None
    ssl_trustmanager_algorithm: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_type: str | None


class ProducerKeywords(ClientKeywords, total=False):
    """Of producers."""

    acks: int | str | None
    batch_size: int | str | None
    buffer_memory: int | str | None
    buffer_memory_allocation_strategy: str | None
    compression_gzip_level: int | str | None
    compression_lz4_level: int | str | None
    compression_type: str | None
    compression_zstd_level: int | str | None
    default_list_key_serde_inner: object
    default_list_key_serde_type: object
    default_list_value_serde_inner: object
    default_list_value_serde_type: object
    delivery_timeout_ms: int | str | None
    enable_idempotence: bool | str | None
    key_serializer: object
    linger_ms: int | str | None
    max_block_ms: int | str | None
    max_in_flight_requests_per_connection: int | str | None
    max_request_size: int | str | None
    metadata_max_idle_ms: int | str | None
    partitioner_adaptive_partitioning_enable: bool | str | None
    partitioner_availability_timeout_ms: int | str | None
    partitioner_class: object
    partitioner_ignore_keys: bool | str | None
    partitioner_rack_aware: bool | str | None
    retries: int | str | None
    transaction_timeout_ms: int | str | None
    transaction_two_phase_commit_enable: bool | str | None
    transactional_id: str | None
    value_serializer: object


class ConsumerKeywords(ClientKeywords, total=False):
    """Of consumers, besides their deserializers."""

    allow_auto_create_topics: bool | str | None
    auto_commit_interval_ms: int | str | None
    auto_offset_reset: str | None
    check_crcs: bool | str | None
    default_api_timeout_ms: int | str | None
    default_list_key_serde_inner: object
    default_list_key_serde_type: object
    default_list_value_serde_inner: object
    default_list_value_serde_type: object
    enable_auto_commit: bool | str | None
    exclude_internal_topics: bool | str | None
    fetch_max_bytes: int | str | None
    fetch_max_wait_ms: int | str | None
    fetch_min_bytes: int | str | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str | None
    group_remote_assignor: str | None
    heartbeat_interval_ms: int | str | None
    isolation_level: str | None
    max_partition_fetch_bytes: int | str | None
    max_poll_interval_ms: int | str | None
    max_poll_records: int | str | None
    partition_assignment_strategy: object
    session_timeout_ms: int | str | None


class ShareConsumerKeywords(ClientKeywords, total=False):
    """Of share consumers, besides their deserializers."""

    allow_auto_create_topics: bool | str | None
    check_crcs: bool | str | None
    default_api_timeout_ms: int | str | None
    default_list_key_serde_inner: object
    default_list_key_serde_type: object
    default_list_value_serde_inner: object
    default_list_value_serde_type: object
    fetch_max_bytes: int | str | None
    fetch_max_wait_ms: int | str | None
    fetch_min_bytes: int | str | None
    group_id: str | None
    max_poll_interval_ms: int | str | None
    max_poll_records: int | str | None
    share_acknowledgement_mode: str | None
    share_acquire_mode: str | None


class AdminKeywords(ClientKeywords, total=False):
    """Of admin clients."""

    bootstrap_controllers: str | list[str] | tuple[str, ...] | None
    default_api_timeout_ms: int | str | None
    retries: int | str | None
