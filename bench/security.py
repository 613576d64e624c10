"""What security costs: TLS and logins, beside Apache Kafka; and what slow handshakes cost others.

    python bench/security.py [--quick] [--rounds 3] [--only tls,handshakes,logins,slow] [--alone]

- tls: librdkafka produces and consumes 1 KB over TLS
- handshakes: `openssl s_time`, two at once, a new session each time
- logins: connections with SCRAM-SHA-256 that are made one after the other, without TLS
- slow: round trips of a client beside 990 handshakes, of which one or the other goes on by a few bytes, or none does
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import median

from harness.blocking import BlockingConnection
from harness.figures import Figure, Figures
from harness.nodes import Node
from harness.systems import KALDA, System, systems

from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.access import ScramUpsertion
from kalda.metadata.scram import ScramMechanism, salted_password
from kalda.network.client.security import ClientSecurity
from kalda.network.free_ports import free_ports
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.security.certificates import Authority
from kalda.security.jaas import SCRAM_MODULE

_RECORD = os.urandom(1_000)
_RECORDS = 100_000

PRODUCE = Figure("TLS produce 1 KB", "MB/s", scale=1e-6)
CONSUME = Figure("TLS consume 1 KB", "MB/s", scale=1e-6)
HANDSHAKES = Figure("handshakes", "/s")
LOGINS = Figure("connections with SCRAM-SHA-256", "/s")
LOGIN_CPU = Figure("CPU of the node for one", "ms", less_is_better=True, scale=1e3)
ROUND_TRIP = Figure("round trip p99", "us", less_is_better=True, scale=1e6)


class SecureNode(Node):
    """A node with listeners of TLS and of SCRAM besides the plain one."""

    certificates: Path

    def fresh(self) -> None:
        """Add the listeners."""
        self.tls_port, self.sasl_port = free_ports(2)
        names = {"PLAINTEXT": self.port, "CONTROLLER": self.controller_port}
        names |= {"SSL": self.tls_port, "SASL_PLAINTEXT": self.sasl_port}
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in names.items())
        self._settings = (
            f"listeners={listeners}\nadvertised.listeners={listeners}\n"
            f"listener.security.protocol.map={','.join(f'{name}:{name}' for name in names if name != 'CONTROLLER')}"
            ",CONTROLLER:PLAINTEXT\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.certificates}/node.pem\n"
            "sasl.enabled.mechanisms=SCRAM-SHA-256\n"
            f"listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={SCRAM_MODULE} required;\n"
        )
        super().fresh()


def make_certificates(directory: Path) -> None:
    authority = Authority("CN=bench", datetime.datetime.now(datetime.UTC))
    issued = authority.issue("CN=node", ["127.0.0.1"])
    (directory / "ca.pem").write_text(authority.issued.certificate)
    (directory / "node.pem").write_text(issued.key + issued.certificate)


def tls(node: SecureNode, figures: Figures) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

    topic = f"tls-{time.monotonic_ns()}"
    node.create_topics([topic])
    config = {
        "bootstrap.servers": f"127.0.0.1:{node.tls_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": f"{node.certificates}/ca.pem",
    }
    producer = Producer({**config, "linger.ms": 5, "batch.size": 200_000, "queue.buffering.max.messages": _RECORDS})
    producer.list_topics(topic, 10)
    began = time.perf_counter()
    for _ in range(_RECORDS):
        producer.produce(topic, _RECORD)
    assert not producer.flush(120)
    figures.add(PRODUCE, node.name, _RECORDS * len(_RECORD) / (time.perf_counter() - began))
    consumer = Consumer({**config, "group.id": "g", "fetch.message.max.bytes": 1_048_576})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = len(consumer.consume(1, 30))
    began = time.perf_counter()
    while found < _RECORDS:
        found += len(consumer.consume(10_000, 1))
    figures.add(CONSUME, node.name, _RECORDS * len(_RECORD) / (time.perf_counter() - began))
    consumer.close()


def handshakes(node: SecureNode, figures: Figures, seconds: int = 3) -> None:
    command = ["openssl", "s_time", "-connect", f"127.0.0.1:{node.tls_port}", "-new", "-time", str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in "ab"]
    total = 0.0
    for each in running:
        shown, _ = each.communicate(timeout=60)
        found = re.search(r"(\d+) connections in (\d+) real seconds", shown)
        assert found is not None, shown
        total += int(found[1]) / int(found[2])
    figures.add(HANDSHAKES, node.name, total)


def logins(node: SecureNode, figures: Figures, count: int = 200) -> None:
    with CommandAdmin(f"127.0.0.1:{node.port}") as admin:
        mechanism = ScramMechanism.SCRAM_SHA_256
        salted = salted_password(mechanism, "secret", b"salt-of-bench", 4096)
        admin.alter_scram_credentials(
            [ScramUpsertion("bench", mechanism.value, 4096, b"salt-of-bench", salted)]
        ).check()
    line = f'{SCRAM_MODULE} required username="bench" password="secret";'
    security = ClientSecurity.of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line}
    )
    time.sleep(1)  # the credential is replayed

    def log_in() -> None:
        BlockingConnection("127.0.0.1", node.sasl_port, security=security, negotiate=True).close()

    for _ in range(count):
        log_in()
    began, cpu = time.perf_counter(), node.cpu_s()
    for _ in range(count):
        log_in()
    figures.add(LOGINS, node.name, count / (time.perf_counter() - began))
    figures.add(LOGIN_CPU, node.name, (node.cpu_s() - cpu) / count)


def slow(node: SecureNode, figures: Figures, turns_of_each: int = 15) -> None:
    """Two figures of one node with 990 unfinished handshakes, in turns: while nothing comes for them, and while a piece
    of one comes before each request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()

    def round_trips(meanwhile: Callable[[], None], count: int = 600) -> float:
        taken = []
        for _ in range(count):
            meanwhile()
            began = time.perf_counter()
            connection.request(MetadataRequest(topics=[]))
            taken.append(time.perf_counter() - began)
        return sorted(taken)[int(count * 0.99)]

    def begin() -> None:
        """One of the others sends two bytes more."""
        peer = next(turns)
        at = sent[peer] = sent[peer] + 2
        peer.sendall(hello[at - 2 : at])

    def elsewhere() -> None:
        """The same work of this process, of which the node gets nothing."""
        near.sendall(hello[:2])
        far.recv(2)

    begun = [socket.create_connection(("127.0.0.1", node.tls_port)) for _ in range(990)]
    sent = dict.fromkeys(begun, 0)
    turns = cycle(begun)
    near, far = socket.socketpair()
    with BlockingConnection("127.0.0.1", node.port) as connection:
        round_trips(elsewhere)
        for _ in range(turns_of_each):
            figures.add(ROUND_TRIP, "quiet", round_trips(elsewhere))
            figures.add(ROUND_TRIP, "slow handshakes", round_trips(begin))
    for each in (*begun, near, far):
        each.close()


MEASURES: dict[str, Callable[[SecureNode, Figures], None]] = {"tls": tls, "handshakes": handshakes, "logins": logins}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="tls,handshakes,logins,slow")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--quick", action="store_true", help="one round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    chosen = arguments.only.split(",")
    directory = SecureNode.certificates = Path(tempfile.mkdtemp(prefix="bench-security-"))
    make_certificates(directory)
    try:
        if any(each in MEASURES for each in chosen):
            named = [each for each in chosen if each in MEASURES]
            beside(systems("1G", alone=arguments.alone), named, arguments.rounds)
        if "slow" in chosen:
            figures, node = Figures(), SecureNode(KALDA)
            try:
                node.start()
                for _ in range(arguments.rounds):
                    slow(node, figures)
            finally:
                node.close()
            figures.show(["quiet", "slow handshakes"])
            quiet, beside_slow = (figures.samples[ROUND_TRIP][name] for name in ("quiet", "slow handshakes"))
            shares = [each / before for each, before in zip(beside_slow, quiet, strict=True)]
            print(f"slow handshakes: {median(shares):.2f} times, the median of {len(shares)} pairs of turns")
    finally:
        shutil.rmtree(directory)


def beside(measured: list[System], chosen: list[str], rounds: int) -> None:
    nodes = [SecureNode(system) for system in measured]
    figures = Figures()
    try:
        for node in nodes:
            node.start()
        for number in range(rounds):
            for node in nodes if number % 2 == 0 else reversed(nodes):
                for each in chosen:
                    MEASURES[each](node, figures)
    finally:
        for node in nodes:
            node.close()
    figures.show([node.name for node in nodes])


if __name__ == "__main__":
    main()
