"""What a new user writes by habit of other clients is answered with what is meant."""

import pickle
import re
import subprocess
import sys

import pytest

import kalda
import kalda.aio
from kalda.cli.records.produce import _Report
from kalda.client.admin.topics import create_topics
from kalda.client.other_clients import CLASSES, METHODS
from kalda.clientcore.producing.outbound_record import to_bytes
from kalda.testing import Cluster


@pytest.mark.parametrize("client", [kalda.Producer, kalda.Consumer])
def test_an_address_or_a_topic_as_the_first_argument_is_no_file(client):
    with pytest.raises(FileNotFoundError, match=r"bootstrap_servers=.*'localhost:9092'"):
        client("localhost:9092")


def test_a_name_is_no_new_topic():
    with pytest.raises(TypeError, match=r"'orders': a list of NewTopic is expected"):
        create_topics(["orders"], timeout_ms=1, validate_only=False)


def test_a_text_for_bytes_is_told_of_serializers():
    with pytest.raises(kalda.SerializationError, match=r'not str; encode it, or .*value_serializer="json"'):
        to_bytes("orders", "text")


def test_a_directory_for_properties_is_told_of_dir(tmp_path):
    run = subprocess.run([sys.executable, "-m", "kalda", "server", tmp_path], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"it is a directory: --dir {tmp_path} is meant" in run.stdout + run.stderr


@pytest.mark.parametrize("client", [kalda.Producer, kalda.Consumer, kalda.Admin])
def test_a_client_that_is_pickled_says_why_it_cannot_be(client):
    with client(bootstrap_servers="localhost:1") as made, pytest.raises(TypeError, match="cannot be pickled: make it"):
        pickle.dumps(made)


@pytest.mark.parametrize("client", [kalda.Producer, kalda.Consumer, kalda.Admin])
def test_a_port_alone_is_no_address(client):
    with pytest.raises(kalda.InvalidConfig, match="bootstrap server '9092': HOST:PORT is expected"):
        client(bootstrap_servers=9092)


@pytest.mark.parametrize(
    ("client", "key"), [(kalda.Consumer, "group.id"), (kalda.Producer, "transactional.id"), (kalda.Admin, "client.id")]
)
def test_a_name_that_cannot_be_sent_is_refused_at_once(client, key):
    """As Python has it of a command line whose bytes are not UTF-8."""
    with pytest.raises(kalda.InvalidConfig, match=f"for configuration {key}: it is not UTF-8"):
        client({"bootstrap.servers": "localhost:1", key: "caf\udce9"})


def test_a_login_without_its_line_shows_one():
    with pytest.raises(
        kalda.InvalidConfig, match=r'SASL_PLAINTEXT needs it; give sasl\.jaas\.config, such as .*"alice"'
    ):
        kalda.Producer(bootstrap_servers="localhost:1", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")


@pytest.mark.parametrize(
    ("name", "here"), [("KafkaProducer", "kalda import Producer"), ("AIOKafkaConsumer", "kalda.aio")]
)
def test_a_class_of_another_client_is_answered_with_kaldas(name, here):
    with pytest.raises(ImportError, match=f"kalda has no {name}; here it is `from {here}"):
        exec(f"from kalda import {name}")
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from kalda import Nonsense")


@pytest.mark.parametrize(
    ("client", "method", "here"),
    [
        (kalda.Producer, "produce", r"send\(topic"),
        (kalda.aio.Producer, "send_and_wait", r"producer\.send\("),
        (kalda.Consumer, "getmany", r"poll\(timeout\)"),
        (kalda.Admin, "list_consumer_groups", r"list_groups\(\)"),
    ],
)
def test_a_method_of_another_client_is_answered_with_kaldas(client, method, here):
    made = client.__new__(client)
    with pytest.raises(AttributeError, match=f"no attribute '{method}'; here it is .*{here}"):
        getattr(made, method)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        made.nonsense  # noqa: B018


def test_the_names_that_are_answered_are_not_there_and_their_answers_are():
    for name in CLASSES:
        assert name not in kalda.__all__
    for kind, methods in METHODS.items():
        faces = (getattr(kalda, kind), getattr(kalda.aio, kind))
        for name, here in methods.items():
            assert not any(hasattr(face, name) for face in faces), name
            for call in re.findall(r"\b(?<!\.)([a-z_]+)\(", here):
                assert all(hasattr(face, call) for face in faces), (name, call)


def test_a_record_has_types_in_an_annotation_that_is_evaluated():
    assert kalda.Record[str, dict].__args__ == (str, dict)


def test_a_misspelt_property_of_a_test_cluster_is_warned_of():
    with pytest.warns(
        UserWarning, match=r"log.retention.hour of the nodes .*did you mean log.retention.hours\?"
    ) as seen:
        Cluster(config={"log.retention.hour": 3})
    assert seen[0].filename == __file__


def test_the_report_of_one_record_is_of_one_record():
    report = _Report("orders")
    report._records = 1
    assert report.line(1.0).startswith("1 record (")
