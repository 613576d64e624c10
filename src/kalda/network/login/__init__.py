"""SASL mechanisms that need more than a password: Kerberos, and OAuth tokens of both sides.

- `kerberos`: the mechanism GSSAPI, over the system's Kerberos library
- `token_validation`: the validation of OAuth tokens by brokers, and which URLs may be used
- `token_endpoint`: where the OAuth tokens of a client come from
"""
