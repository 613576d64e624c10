"""kcat, and with it the librdkafka of the distribution, which is older than that of confluent-kafka."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from lone_node import LoneNode

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat: apt-get install kcat"),
]


def kcat(node: LoneNode, *arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["kcat", "-b", node.address, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_survive(node: LoneNode, fresh: Callable[[str], str], codec: str) -> None:
    topic = fresh("kcat")
    lines = "".join(f"k{number}:v{number}\n" for number in range(100))
    kcat(node, "-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, "-H", "from=kcat", stdin=lines)
    out = kcat(node, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\n")
    assert out.splitlines() == [f"{number} k{number} v{number} from=kcat" for number in range(100)]


def test_lists_queries_and_tails(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("kcat")
    kcat(node, "-P", "-t", topic, "-p", "1", stdin="a\nb\nc\n")
    listed = json.loads(kcat(node, "-L", "-J", "-t", topic))
    assert [len(each["partitions"]) for each in listed["topics"]] == [2]
    assert f"{topic} [1] offset 3" in kcat(node, "-Q", "-t", f"{topic}:1:-1")
    assert kcat(node, "-C", "-t", topic, "-p", "1", "-o", "-1", "-c", "1", "-q") == "c\n"


def test_reads_in_a_group(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("kcat"), fresh("group")
    kcat(node, "-P", "-t", topic, stdin="a\nb\n")
    settings = ("-X", "auto.offset.reset=earliest", "-q", "-e")
    assert sorted(kcat(node, "-G", group, *settings, topic).split()) == ["a", "b"]
    kcat(node, "-P", "-t", topic, stdin="c\n")
    assert kcat(node, "-G", group, *settings, topic).split() == ["c"]
