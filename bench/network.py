"""Requests a second through the network floor, over loopback, on each event loop.

Server and client are processes of their own. `pipelined` keeps a window of requests in flight on each connection;
`round trip` has one. The handler is trivial, or spins for a given time in place of the work of a produce request.
Compare the server's CPU seconds per request, since the client runs on the same machine.

    python bench/network.py [--quick] [--seconds 2] [--connections 2] [--handler-us 0] [--response 60]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import resource
import socket
import threading
import time
from multiprocessing.connection import Connection as Pipe

import uvloop

from kalda.broker.system_clock import SystemClock
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.server import Server


def serve(pipe: Pipe, loop_name: str, handler_us: int, response: int) -> None:
    body = bytes(response)
    served = 0

    def handler(connection: Connection, frame: memoryview) -> Answer:
        nonlocal served
        served += 1
        if handler_us:
            until = time.perf_counter_ns() + handler_us * 1000
            while time.perf_counter_ns() < until:
                pass
        return [bytes(frame[4:8]), body]

    async def run() -> None:
        server = Server(SystemClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, handler)
        pipe.send(listener.port)
        while True:
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((served, usage.ru_utime + usage.ru_stime))

    (uvloop.run if loop_name == "uvloop" else asyncio.run)(run())


def drive(port: int, seconds: float, window: int, request: int, response: int) -> None:
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = request.to_bytes(4, "big") + bytes(request)
    burst = frame * window
    answer_bytes = (response + 8) * window
    answer = bytearray(1 << 20)
    until = time.perf_counter() + seconds
    peer.sendall(burst)
    while time.perf_counter() < until:
        peer.sendall(burst)  # one window is always in flight
        left = answer_bytes
        while left:
            left -= peer.recv_into(answer, min(left, len(answer)))
    peer.close()


def measure(loop_name: str, label: str, args: argparse.Namespace, window: int, request: int, response: int) -> None:
    ours, theirs = mp.Pipe()
    process = mp.Process(target=serve, args=(theirs, loop_name, args.handler_us, response), daemon=True)
    process.start()
    port = ours.recv()
    ours.send(None)
    before, cpu_before = ours.recv()
    started = time.perf_counter()
    drivers = [
        threading.Thread(target=drive, args=(port, args.seconds, window, request, response))
        for _ in range(args.connections)
    ]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    elapsed = time.perf_counter() - started
    ours.send(None)
    after, cpu_after = ours.recv()
    process.kill()
    process.join()
    count = after - before
    cpu_us = (cpu_after - cpu_before) / count * 1e6
    megabytes = count * (request + response) / elapsed / 1e6
    rates = f"{count / elapsed:>10,.0f} requests/s {megabytes:>8,.0f} MB/s"
    print(f"{loop_name:8} {label:28} {rates}  {cpu_us:6.2f} µs CPU each")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--handler-us", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time")
    args = parser.parse_args()
    args.seconds *= 0.2 if args.quick else 1
    for loop_name in ("uvloop", "asyncio"):
        measure(loop_name, "pipelined 64 × 250 B", args, 64, 250, 60)
        measure(loop_name, "round trip 250 B", args, 1, 250, 60)
        measure(loop_name, "produce 8 × 64 KiB", args, 8, 65_536, 60)
        measure(loop_name, "fetch 4 × 1 MiB", args, 4, 100, 1 << 20)


if __name__ == "__main__":
    main()
