"""Makes `error_responses.txt.gz` with Apache Kafka's own classes: how each API says that a whole request failed.

    PYTHONPATH=src:tests/unit/broker python tests/golden/broker/ask_kafka.py LIBS

LIBS is the `libs` directory of Apache Kafka 4.3.1. The requests are those of `naming_requests`, in every version of
every API; the error is POLICY_VIOLATION with the message "not by this policy". A line is the API key, the version, and
the response's body in hex.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

from naming_requests import naming_request

from kalda.protocol.apis import API, ApiKey
from kalda.protocol.codec import encode

HERE = Path(__file__).parent


def main(libs: Path) -> None:
    lines = [
        f"{key} {version} {encode(naming_request(ApiKey(key), version), version).hex()}\n"
        for key, api in sorted(API.items())
        for version in range(api.lowest, api.highest + 1)
    ]
    with tempfile.TemporaryDirectory() as directory:
        requests, responses = Path(directory, "requests"), Path(directory, "responses")
        requests.write_text("".join(lines), encoding="ascii")
        java = ("java", "-cp", f"{libs}/*", str(HERE / "ErrorResponses.java"), str(requests), str(responses))
        subprocess.run(java, check=True)
        with gzip.GzipFile(HERE / "error_responses.txt.gz", "wb", mtime=0) as packed:
            packed.write(responses.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
