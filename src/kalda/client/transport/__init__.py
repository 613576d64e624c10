"""What every client stands on: sockets, threads and loops.

- `driven`: what the I/O of every client runs: its core, with what the shell adds
- `faces`: what users hold of a client of any kind; `aio_face`: one of asyncio, and its machine's clocks
- `io_thread`, `aio_face`: run a core on a thread of its own, or on an asyncio loop; `shared_io`: on a thread of the
  application while that waits
- `held_signals`: handlers of signals wait while the main thread changes the state of a client
- `channels`, `channel`, `tls_channel`, `sasl_channel`: the sockets of a core's connections; one socket; one with TLS;
  one that logs in
- `config_files`: a client's configuration from a properties file, or by its name on this machine
"""
