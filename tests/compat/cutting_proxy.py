"""A proxy in front of a node, which cuts connections: all of them, or one in the middle of a response."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class CuttingProxy:
    """Passes bytes on until its end, which closes all connections and ends its threads."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.left = 0
        """Bytes of responses before the next cut; 0: none."""
        self.cuts = 0
        """Responses that were cut."""
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)  # a close would not end the thread's accept
        self._threads[0].join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Close all connections, mid-request or not."""
        for each in list(self._open):
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._open |= {client, server}
            for source, sink, is_response in ((client, server, False), (server, client, True)):
                self._threads.append(threading.Thread(target=self._copy, args=(source, sink, is_response)))
                self._threads[-1].start()

    def _copy(self, source: socket.socket, sink: socket.socket, is_response: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if is_response and self.left:
                    if len(data) >= self.left:
                        sink.sendall(data[: self.left])
                        self.left = 0
                        self.cuts += 1
                        break
                    self.left -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            _shut(each)
        self._open.discard(source)
        source.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
