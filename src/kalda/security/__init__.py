"""Who sends a request, and what they may do: TLS identities, SASL mechanisms, principals; access control entries.

Pure: bytes and values in, bytes and values out. It opens no socket and no file, and holds no `ssl` object; the time and
random bytes are arguments. Sockets are in `network`, files and the metadata image in `broker` and `client`. It depends
on no handler: an API's checks are in `kalda.protocol.access`.

- `certificates`: certificate authorities and certificates for test clusters
- `custom_authorizer`: an operator's own class in place of the entries
- `jaas`: login lines, `sasl.jaas.config`
- `keystores`: key, certificates and trusted certificates out of PEM, PKCS #12 and JKS
- `mechanisms`: what a SASL mechanism is, on both sides, and PLAIN; a client's part of a login
- `oauthbearer`: the mechanism OAUTHBEARER, and the claims of its tokens
- `principals`: what is known of a peer, and what makes a principal of it: rules for certificates and Kerberos
- `scram`: the mechanisms SCRAM-SHA-256 and SCRAM-SHA-512
- `server_login`: a server's part of a login: which frames are accepted in which state, and the answers
- `standard_authorizer`: Kafka's StandardAuthorizer, and why it allows or denies, as JSON
- `tls_settings`: the settings of one side of TLS, out of a configuration
"""
