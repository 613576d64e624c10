"""An HTTP server on loopback for tests of clients that post forms, as those of token endpoints do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

Form = dict[str, str]


class FormServer:
    """Answers each request with the status and the content that `answer` returns for its headers and its form."""

    def __init__(self, path: str, answer: Callable[[Mapping[str, str], Form], tuple[int, str]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send({})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._send({name: values[0] for name, values in form.items()})

            def _send(self, form: Form) -> None:
                status, content = answer(dict(self.headers), form)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{path}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
