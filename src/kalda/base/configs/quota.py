"""Quota keys by the kind of entity that they limit. Who may have which is checked by `kalda.quota`."""

from __future__ import annotations

from kalda.base.configs.definition import DOUBLE, INT, INT_MAX, LONG, LONG_MAX, AtLeast, Definition, Key

USER_AND_CLIENT_KEYS = (
    Key("consumer_byte_rate", LONG, LONG_MAX),
    Key("controller_mutation_rate", DOUBLE, 2147483647.0),
    Key("producer_byte_rate", LONG, LONG_MAX),
    Key("request_percentage", DOUBLE, 2147483647.0),
)

IP_KEYS = (Key("connection_creation_rate", INT, INT_MAX, AtLeast(0)),)

USER_AND_CLIENT = Definition(USER_AND_CLIENT_KEYS)
IP = Definition(IP_KEYS)
