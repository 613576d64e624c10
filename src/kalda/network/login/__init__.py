"""SASL mechanisms that need more than a password: Kerberos, and OAuth tokens of both sides.

- `kerberos`: the mechanism GSSAPI, over the system's Kerberos library
- `jaas_file`: the login lines of a JAAS file that `KAFKA_OPTS` names
- `token_validation`: the validation of OAuth tokens by brokers, and which URLs may be used
- `token_checks`: what the configuration says about a client's token, and the checks of one before it is used
- `token_endpoint`: where the OAuth tokens of a client come from
"""
