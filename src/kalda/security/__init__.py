"""Who sends a request: TLS identities, SASL mechanisms, principals.

Pure: bytes and values in, bytes and values out. It opens no socket and no file, and holds no `ssl` object; the time and
random bytes are arguments. Sockets are in `network`, files and the metadata image in `broker` and `client`.

- `certificates`: certificate authorities and certificates for test clusters
- `ciphers`: names of TLS protocols and cipher suites, Java's to OpenSSL's
- `distinguished_names`: the subject of a certificate as text, as Java writes it
- `jaas`: login lines, `sasl.jaas.config`
- `jwt`: claims of OAuth tokens, and tokens without a signature
- `keystores`: key, certificates and trusted certificates out of PEM, PKCS #12 and JKS
- `login`: a client's part of a login: requests out, responses in
- `mechanisms`: what a SASL mechanism is, on both sides, and PLAIN
- `oauthbearer`: the mechanism OAUTHBEARER
- `principal_mapping`: rules that turn a certificate's subject into a principal's name
- `principals`: what is known of an authenticated peer, and what makes a principal of it
- `scram`: the mechanisms SCRAM-SHA-256 and SCRAM-SHA-512
- `server_login`: a server's part of a login: which frames are accepted in which state, and the answers
- `tls_settings`: the settings of one side of TLS, out of a configuration
"""
