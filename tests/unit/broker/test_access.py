"""What a node answers to clients with various rights, beside what Apache Kafka 4.3.1 has answered to the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from access_questions import answers

from kalda.testing import Cluster

GOLDEN = Path(__file__).parents[2] / "golden" / "security" / "answers.json.gz"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def test_every_api_checks_what_apache_kafka_checks() -> None:
    """Error codes, names and authorized operations of all answers, with each of 32 sets of rights."""
    config = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}
    with Cluster(config=config) as cluster:
        found = answers(int(cluster.bootstrap_servers.rpartition(":")[2]))
    expected: dict[str, dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    assert found.keys() == expected.keys()
    differing = [
        f"{rights}: {question}: {found[rights].get(question)} instead of {answer}"
        for rights, by_question in expected.items()
        for question, answer in by_question.items()
        if found[rights].get(question) != answer
    ]
    assert not differing, "\n".join(differing[:20])
