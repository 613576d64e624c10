"""A line on each key of the clients, for the documentation. Imported where it is read."""

from __future__ import annotations

_NO_EFFECT: dict[str, tuple[str, ...]] = {
    "No effect: it concerns Java.": (
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ),
    "No effect: tickets are got by the key table, or from the cache that `kinit` fills.": (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
    ),
}

CLIENT: dict[str, str] = {
    "acks": (
        "Which replicas must have a record before it is acknowledged: all in sync (`all`), the leader (`1`), none "
        "(`0`)."
    ),
    "allow.auto.create.topics": "Whether subscribing to an unknown topic may create it, where the brokers allow that.",
    "auto.commit.interval.ms": "Time between automatic commits.",
    "auto.offset.reset": (
        "Where a partition without a committed offset begins: `earliest`, `latest`, `by_duration:PT1H` (that long "
        "ago), `none` (raise)."
    ),
    "batch.size": "Bytes up to which records of one partition are gathered in a batch.",
    "bootstrap.controllers": (
        "host:port pairs of some controllers, for requests to them instead of to brokers; excludes `bootstrap.servers`."
    ),
    "bootstrap.servers": "host:port pairs of some brokers, from which the client learns of all others.",
    "buffer.memory": "Bytes of records that may wait to be sent or acknowledged; beyond them `send` waits.",
    "check.crcs": "Whether the checksums of batches are compared.",
    "client.dns.lookup": "Every address of a host is tried in turn (`use_all_dns_ips`); the other value has no effect.",
    "client.id": "Name of the client in the brokers' logs, metrics and quotas; without one it gets a numbered name.",
    "client.rack": "Rack of the client. A consumer reads from a replica there, where the brokers allow it.",
    "compression.gzip.level": "Level used where `compression.type` is gzip.",
    "compression.lz4.level": "Level used where `compression.type` is lz4.",
    "compression.type": "Codec of batches.",
    "compression.zstd.level": "Level used where `compression.type` is zstd.",
    "connections.max.idle.ms": "Connections without requests are closed after this time; -1 is never.",
    "default.api.timeout.ms": "Time that a call may take, with all its attempts, where it is given no timeout.",
    "default.list.key.serde.inner": "Type of the elements of keys, for Kafka's ListSerializer and ListDeserializer.",
    "default.list.key.serde.type": "No effect: lists of Python are written and returned.",
    "default.list.value.serde.inner": "Type of the elements of values, as `default.list.key.serde.inner`.",
    "default.list.value.serde.type": "No effect, as `default.list.key.serde.type`.",
    "delivery.timeout.ms": "Time after which a record is acknowledged or has failed, with lingering and all attempts.",
    "enable.auto.commit": "Whether the offsets of processed records are committed by `poll` and `close`.",
    "enable.idempotence": "Whether brokers drop the second copy of a batch that is sent again, and keep the order.",
    "enable.metrics.push": (
        "Whether the client sends its metrics to the cluster, as far as the cluster subscribes to them (KIP-714)."
    ),
    "exclude.internal.topics": "Whether a pattern leaves internal topics out.",
    "fetch.max.bytes": (
        "Bytes that a response may have, and that may be buffered in all; a first batch that is larger is "
        "returned all the same."
    ),
    "fetch.max.wait.ms": "Time for which a broker waits for `fetch.min.bytes`.",
    "fetch.min.bytes": "Bytes for which a broker waits before it answers.",
    "group.id": "Consumer group of the consumer; without one it only reads assigned partitions and commits nothing.",
    "group.instance.id": "Name of a static member, whose partitions stay its own through a restart (KIP-345).",
    "group.protocol": "`classic`, or `consumer` where the brokers assign partitions (KIP-848).",
    "group.remote.assignor": "The brokers' assignor for `group.protocol=consumer`; without one they choose.",
    "heartbeat.interval.ms": "Time between heartbeats to the coordinator of a classic group.",
    "interceptor.classes": (
        "Objects of producers and consumers that see, and may change, each record before it is sent or returned."
    ),
    "isolation.level": "`read_committed` returns no records of open and aborted transactions.",
    "kalda.sasl.oauthbearer.allowed.files": "Files that `sasl.oauthbearer.assertion.*` may name; no other one is read.",
    "kalda.sasl.oauthbearer.allowed.urls": "URLs of token endpoints and token files that may be used; no other one is.",
    "key.deserializer": (
        "What bytes of keys become: a type, as `key.serializer` names them, or an object, a class or a function of "
        "your own."
    ),
    "key.serializer": (
        "How keys become bytes: `bytes`, `str`, `int` and `long` (eight bytes), `integer`, `short`, `float` and "
        "`double` (eight bytes), `float32`, `bool`, `uuid`, `json`, `void`, `list[…]` of these, the class names of "
        "Kafka's serializers, or an object, a class or a function of your own."
    ),
    "linger.ms": "Time for which a batch that is not full waits for more records.",
    "max.block.ms": (
        "Time for which `send` waits for metadata and for memory, and for which calls of transactions wait."
    ),
    "max.in.flight.requests.per.connection": (
        "Requests to one broker that may be without a response; at most 5 with idempotence."
    ),
    "max.partition.fetch.bytes": "Bytes of one partition that a response may have, and that are buffered ahead.",
    "max.poll.interval.ms": "Time between two calls of `poll` after which the consumer leaves its group.",
    "max.poll.records": "Records that `poll` returns at most.",
    "max.request.size": "Bytes that a request, and so a record, may have.",
    "metadata.max.age.ms": "Metadata is fetched again after this time, also where nothing has changed.",
    "metadata.max.idle.ms": "A topic to which nothing was sent for this time leaves the client's metadata.",
    "metadata.recovery.rebootstrap.trigger.ms": (
        "Time without an answer to metadata requests after which the bootstrap servers are used again."
    ),
    "metadata.recovery.strategy": (
        "What follows where no known broker can be reached: `rebootstrap` uses the bootstrap servers again, "
        "`none` goes on with the known ones."
    ),
    "metric.reporters": "No effect: `metrics()` of a client returns its metrics.",
    "metrics.num.samples": "Windows over which a rate, an average or a maximum of `metrics()` reaches back.",
    "metrics.recording.level": "No effect: all metrics are recorded.",
    "metrics.sample.window.ms": "Length of a window of `metrics()`.",
    "partition.assignment.strategy": "Assignors that the members of a classic group may use, the preferred one first.",
    "partitioner.adaptive.partitioning.enable": (
        "Whether partitions whose leaders are slow get fewer of the records without a key."
    ),
    "partitioner.availability.timeout.ms": (
        "Partitions of a leader that has taken nothing for this time get no records without a key; 0 is never."
    ),
    "partitioner.class": (
        "What chooses partitions: an object with `partition(...)`, a class of such or its name `package.module.Class`, "
        "or `org.apache.kafka.clients.producer.RoundRobinPartitioner`. Without one, keys choose by murmur2, and "
        "records without a key stick to a partition for a batch."
    ),
    "partitioner.ignore.keys": "Whether keys are not used to choose partitions.",
    "partitioner.rack.aware": "Whether records without a key go to leaders in `client.rack`, where it has some.",
    "receive.buffer.bytes": "Size of a socket's receive buffer (SO_RCVBUF); -1 leaves it to the system.",
    "reconnect.backoff.max.ms": "Longest pause before a node is connected to again.",
    "reconnect.backoff.ms": "Pause before a node is connected to again after a failure; it doubles with each failure.",
    "request.timeout.ms": "Time after which a request without a response has failed, and its connection is closed.",
    "retries": (
        "How often a producer sends a batch again that was refused for a passing reason, within "
        "`delivery.timeout.ms`. No effect on admin clients, which repeat requests until `default.api.timeout.ms`."
    ),
    "retry.backoff.max.ms": "Longest pause before a request is repeated.",
    "retry.backoff.ms": "Pause before a request is repeated after a failure; it doubles with each failure.",
    "sasl.jaas.config": "Login module and its options, such as user name and password.",
    "sasl.client.callback.handler.class": (
        "Python class, as `package.module:Class`, whose method is called for each login: `token()` of OAUTHBEARER, "
        "`credentials()` of PLAIN and SCRAM, which returns user name and password. Kafka's own names are the default."
    ),
    "sasl.kerberos.service.name": "Kerberos principal that brokers run as, as `kafka`.",
    "sasl.kerberos.ticket.renew.window.factor": "Share of the life of a ticket after which it is got anew.",
    "sasl.login.callback.handler.class": (
        "Python class, as `package.module:Class`, whose method `token()` returns a token of OAUTHBEARER. Kafka's "
        "`OAuthBearerUnsecuredLoginCallbackHandler` makes one by the login line, its `OAuthBearerLoginCallbackHandler` "
        "gets it from `sasl.oauthbearer.token.endpoint.url`."
    ),
    "sasl.login.class": (
        "Python class like that of `sasl.client.callback.handler.class`, which counts where both are set."
    ),
    "sasl.login.connect.timeout.ms": "Time for connecting to a token endpoint; 10 s where it is not set.",
    "sasl.login.read.timeout.ms": "Time for which a token endpoint may send nothing; 10 s where it is not set.",
    "sasl.login.refresh.buffer.seconds": "Time before its end at which a token is got anew at the latest.",
    "sasl.login.refresh.min.period.seconds": (
        "Time that a token is used at least. This and `sasl.login.refresh.buffer.seconds` have no effect on a token "
        "whose life is shorter than both together."
    ),
    "sasl.login.refresh.window.factor": "Share of the life of a token after which it is got anew.",
    "sasl.login.refresh.window.jitter": (
        "Largest share of the life of a token that is added to `sasl.login.refresh.window.factor`, at random."
    ),
    "sasl.login.retry.backoff.max.ms": "Time for which a request to a token endpoint is repeated.",
    "sasl.login.retry.backoff.ms": "Time before the first repetition; then twice as long each time.",
    "sasl.mechanism": ("Mechanism of the login: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`."),
    "sasl.oauthbearer.assertion.algorithm": "Signature of assertions: `RS256` or `ES256`.",
    "sasl.oauthbearer.assertion.claim.aud": "Claim `aud` of assertions.",
    "sasl.oauthbearer.assertion.claim.exp.seconds": "Time for which an assertion is valid.",
    "sasl.oauthbearer.assertion.claim.iss": (
        "Claim `iss` of assertions. Where it is set, an assertion takes the place of the client secret."
    ),
    "sasl.oauthbearer.assertion.claim.jti.include": "Whether each assertion has an id of its own, the claim `jti`.",
    "sasl.oauthbearer.assertion.claim.nbf.seconds": "Time before it is made from which an assertion is valid.",
    "sasl.oauthbearer.assertion.claim.sub": "Claim `sub` of assertions.",
    "sasl.oauthbearer.assertion.file": "File with an assertion, which is sent in place of the client secret.",
    "sasl.oauthbearer.assertion.private.key.file": "File with the key that signs assertions, as PEM (PKCS #8).",
    "sasl.oauthbearer.assertion.private.key.passphrase": "Passphrase of the key that signs assertions.",
    "sasl.oauthbearer.assertion.template.file": "JSON file whose objects `header` and `payload` assertions begin with.",
    "sasl.oauthbearer.client.credentials.client.id": "Client id with which a token is requested.",
    "sasl.oauthbearer.client.credentials.client.secret": "Secret with which a token is requested.",
    "sasl.oauthbearer.clock.skew.seconds": "Seconds by which the clocks may differ, where a client checks signatures.",
    "sasl.oauthbearer.expected.audience": "Audiences, one of which a token names, where a client checks signatures.",
    "sasl.oauthbearer.expected.issuer": "Issuer of tokens, where a client checks signatures.",
    "sasl.oauthbearer.header.urlencode": "Whether client id and secret are encoded as in a URL before they are sent.",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "Time after which the keys of signatures are read anew.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "Time for which reading the keys of signatures is repeated.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "Time before that is repeated; then twice as long each time.",
    "sasl.oauthbearer.jwks.endpoint.url": "Keys of signatures. Where it is set, a client checks its tokens by them.",
    "sasl.oauthbearer.jwt.retriever.class": (
        "How tokens are got: the default by a client id and a secret or an assertion, or from a file; Kafka's "
        "`JwtBearerJwtRetriever` by an assertion alone (RFC 7523); or a Python class with a method `retrieve()`."
    ),
    "sasl.oauthbearer.jwt.validator.class": (
        "How a token is checked before it is used: by its claims, where the default finds no "
        "`sasl.oauthbearer.jwks.endpoint.url`, else by its signature too; or a Python class with a method "
        "`validate(token)`."
    ),
    "sasl.oauthbearer.scope": "Scope of the requested token.",
    "sasl.oauthbearer.scope.claim.name": "Claim with the scope of a token, where a client checks signatures.",
    "sasl.oauthbearer.sub.claim.name": "Claim with the name of the principal.",
    "sasl.oauthbearer.token.endpoint.url": "Where tokens are requested, or read (`file:`).",
    "security.protocol": (
        "Whether connections are encrypted (`SSL`), authenticated by SASL (`SASL_PLAINTEXT`), both (`SASL_SSL`) "
        "or neither."
    ),
    "send.buffer.bytes": "Size of a socket's send buffer (SO_SNDBUF); -1 leaves it to the system.",
    "session.timeout.ms": "Time without heartbeats after which a member is removed from its classic group.",
    "socket.connection.setup.timeout.max.ms": "Longest time that an attempt to connect may take.",
    "socket.connection.setup.timeout.ms": (
        "Time that the first attempt to connect may take; it doubles with each failure."
    ),
    "ssl.cipher.suites": "Cipher suites that may be used; without it OpenSSL's defaults.",
    "ssl.enabled.protocols": "Versions of TLS that may be used.",
    "ssl.endpoint.identification.algorithm": (
        "`https` compares a broker's certificate with its host name; empty does not."
    ),
    "ssl.engine.factory.class": "No effect: OpenSSL makes the connections.",
    "ssl.key.password": "Password of the private key.",
    "ssl.keystore.certificate.chain": "Certificates of the client, as PEM text.",
    "ssl.keystore.key": "Private key of the client, as PEM text.",
    "ssl.keystore.location": "File with the client's private key and certificates.",
    "ssl.keystore.password": "Password of that file.",
    "ssl.keystore.type": "Format of that file: `PEM`, `PKCS12` or `JKS`.",
    "ssl.protocol": "No effect: `ssl.enabled.protocols` decides.",
    "ssl.truststore.certificates": "Certificates that the client trusts, as PEM text.",
    "ssl.truststore.location": "File with the certificates that the client trusts; without one the system's.",
    "ssl.truststore.password": "Password of that file.",
    "ssl.truststore.type": "Format of that file: `PEM`, `PKCS12` or `JKS`.",
    "transaction.timeout.ms": "Time after which the coordinator aborts a transaction that was not ended.",
    "transaction.two.phase.commit.enable": (
        "Whether an external coordinator decides on transactions (KIP-939): they never expire, and may be prepared "
        "with `prepare_transaction`. The brokers have to allow it by the same key."
    ),
    "transactional.id": "Name that makes the producer transactional, and by which it fences its predecessors.",
    "value.deserializer": "What bytes of values become, as `key.deserializer`.",
    "value.serializer": "How values become bytes, as `key.serializer`.",
    **{key: text for text, keys in _NO_EFFECT.items() for key in keys},
}
